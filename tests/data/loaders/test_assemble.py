"""What a worker sends of a batch, beside its pixels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.types import Batch, Labels, Target, Text, as_targets

strings = st.lists(st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(["", "\0", "a\0b"]), max_size=6)


@given(strings, st.booleans())
def test_keys_and_targets_arrive_as_they_were(values: list[str], text: bool) -> None:
    targets: list[Target] = [Text(value) if text else Labels((value,)) for value in values]
    count = len(values)
    images, widths, index = np.zeros((count, 1, 2, 1), np.uint8), np.ones(count, np.int32), np.arange(count)
    made = CollatedBatch(Batch(images, widths, as_targets(targets), list(values), index), [], 0, 0, 0)
    batch = CollatedBatch.unpack(made.pack(), np.zeros(2 * count, np.uint8)).batch
    assert batch.keys == values
    assert list(batch.targets) == targets
    assert batch.images.shape == images.shape
