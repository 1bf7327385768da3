"""What a GPU waits for data is what the GPU waits, not what Python does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from captcha_source import SlowSource

from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader

torch = pytest.importorskip("torch")
SlowPlan = Callable[[], LoadPlan]


@pytest.fixture
def slow_plan(captchas: Path, captcha_plan: Callable[..., LoadPlan]) -> SlowPlan:
    """Twelve batches of 24 ms each."""
    return lambda: LoadPlan(SlowSource.first(captchas, 96), captcha_plan().resize, batch_size=8)


def test_without_a_gpu_the_consumer_waits(slow_plan: SlowPlan) -> None:
    loader = DeviceLoader(make_loader(slow_plan()), "cpu")
    next(iter(loader))
    assert loader.stats.idle_s is None
    assert loader.stats.stalled_s == loader.stats.waited_s > 0.02


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (1, "workers")])
def test_a_gpu_without_work_is_idle_while_python_waits(slow_plan: SlowPlan, workers: int, kind: str) -> None:
    with DeviceLoader(make_loader(slow_plan(), workers, kind), "cuda") as loader:
        for _ in loader:
            torch.cuda.synchronize()
        stats = loader.stats
    assert 0.5 * stats.waited_s < stats.stalled_s < 1.5 * stats.waited_s


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_with_a_queue_is_not_idle_while_python_waits(slow_plan: SlowPlan) -> None:
    loader = DeviceLoader(make_loader(slow_plan()), "cuda")
    for batch in loader:
        torch.cuda._sleep(1 << 28)  # cycles: more than a tenth of a second
        assert batch.images.device.type == "cuda"
    torch.cuda.synchronize()
    next(iter(loader))  # the marks of the epoch are read now
    assert loader.stats.waited_s > 0.25
    assert loader.stats.stalled_s < loader.stats.waited_s / 2
