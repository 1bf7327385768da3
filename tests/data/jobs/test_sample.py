from __future__ import annotations

import numpy as np

from inkmill.data.jobs.sample import SampleSet
from inkmill.data.types import Text


def test_samples_sorted_by_width_come_out_of_batches_in_their_own_order() -> None:
    widths = [96, 64, 128, 64, 96, 64]
    images = [np.full((8, width, 1), number, np.uint8) for number, width in enumerate(widths)]
    samples = SampleSet("x", images, [Text(str(number)) for number in range(6)])
    samples.sort_by_size()
    batches = list(samples.batches(2))
    assert [batch.shape[2] for batch in batches] == [64, 64, 96, 128]
    shown = [int(image[0, 0, 0]) for batch in batches for image in batch]
    assert shown == [1, 3, 5, 0, 4, 2]
    assert [target.value for target in samples.targets if isinstance(target, Text)] == list(map(str, shown))
