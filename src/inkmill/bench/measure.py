"""Images per second, with its spread: warm-up first, then several windows of one running stream.

The windows follow each other without a pause, so nothing can be made ahead outside the clock, and each ends with the
device idle. The figure is the median of the windows; the spread is their range over the median. A machine that does
something else meanwhile shows in the spread, not in the figure alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Measured:
    """What a stream did.

    Attributes:
        images_per_s: median of the windows.
        spread: (fastest - slowest) / median.
        first_s: seconds until the first batch, starting processes included.
        shape: of a batch.
    """

    images_per_s: float
    spread: float
    first_s: float
    shape: tuple[int, ...]


def measure(
    stream: Iterator[Tensor], seconds: float, warm_images: int, window_images: int = 0, repeats: int = 3
) -> Measured:
    """Take a stream's speed.

    Args:
        stream: batches without end; the device of its tensors is waited for at the end of each window.
        seconds: length of all windows together.
        warm_images: consume at least so many images first: a full pass where pictures are kept.
        window_images: consume at least so many images a window: processes that make whole batches finish together, and
            a window shorter than such a round would count what was made before it began.
        repeats: number of windows; each takes at least one batch.

    Raises:
        RuntimeError: the stream ended.
    """
    start = perf_counter()
    batch = _following(stream)
    _settle(batch)
    first_s = perf_counter() - start
    seen, until = len(batch), perf_counter() + seconds / repeats
    while seen < warm_images or perf_counter() < until:
        batch = _following(stream)
        seen += len(batch)
    _settle(batch)
    speeds = [_window(stream, seconds / repeats, window_images) for _ in range(repeats)]
    middle = median(speeds)
    return Measured(middle, (max(speeds) - min(speeds)) / middle, first_s, tuple(batch.shape))


def _window(stream: Iterator[Tensor], seconds: float, least: int) -> float:
    start, images = perf_counter(), 0
    while True:
        batch = _following(stream)
        images += len(batch)
        if images >= least and perf_counter() - start >= seconds:
            _settle(batch)
            return images / (perf_counter() - start)


def _following(stream: Iterator[Tensor]) -> Tensor:
    batch = next(stream, None)
    if batch is None:
        raise RuntimeError("a contestant's stream ended; it must go on for ever")
    return batch


def _settle(batch: Any) -> None:
    """Wait until the device has done all that was asked of it."""
    if batch.is_cuda:
        import torch

        torch.cuda.synchronize(batch.device)
