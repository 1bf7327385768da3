from __future__ import annotations

from itertools import repeat

import pytest

torch = pytest.importorskip("torch")

from inkmill.bench.measure import measure  # noqa: E402


def test_warm_up_takes_as_many_images_as_asked_before_the_clock_runs():
    taken = []

    def stream():
        while True:
            taken.append(len(taken))
            yield torch.zeros(4, 2, 2, 3, dtype=torch.uint8)

    result = measure(stream(), seconds=0.001, warm_images=400, repeats=2)
    assert len(taken) > 100
    assert result.images_per_s > 0
    assert result.spread >= 0
    assert result.shape == (4, 2, 2, 3)


def test_images_are_counted_not_batches():
    small, large = torch.zeros(1, 1, 1, 3), torch.zeros(1000, 1, 1, 3)
    speeds = [measure(repeat(batch), seconds=0.02, warm_images=1).images_per_s for batch in (small, large)]
    assert speeds[1] > 50 * speeds[0]


def test_a_stream_that_ends_is_an_error():
    with pytest.raises(RuntimeError, match="stream ended"):
        measure(iter([torch.zeros(1, 1, 1, 3)]), seconds=0.01, warm_images=100)
