"""What each stage of making an image costs here, on this data: one core, one stage at a time, over whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from inkmill.data.augment.cpu import apply_cv
from inkmill.data.augment.gpu import apply_deferred
from inkmill.data.augment.params import DeferredAugmentation
from inkmill.data.loaders import LoadPlan
from inkmill.data.loaders.assemble import BatchAssembler
from inkmill.data.loaders.device import why_not_resize
from inkmill.data.loaders.images import RaggedWriter, ragged_bytes
from inkmill.data.pipeline.cache import CacheConfig, open_cache
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import Subset
from inkmill.diagnose.facts import Stages
from inkmill.diagnose.gpu_clock import GpuClock
from inkmill.diagnose.rig import StepHarness
from inkmill.diagnose.windows import Interval, Rounds, in_rounds, interval, steady
from inkmill.errors import DataError

_CHUNK = 64
_CHUNKS = 8


@dataclass(frozen=True)
class StageTimes:
    """Seconds an image and core of each stage, by its name; `augment (GPU)` and `copy` are seconds of the GPU.

    Attributes:
        times: in the order of the work; `hand over` takes the place of `resize` where the GPU fits.
        image_bytes: mean size of an encoded image.
        bad: samples that could not be decoded.
    """

    times: dict[str, Interval]
    image_bytes: float
    bad: int = 0

    def __or__(self, other: StageTimes) -> StageTimes:
        """Return these and other stages."""
        return replace(self, times={**self.times, **other.times})

    def as_stages(self, wait: float = 0.0, fetch: float = 0.0) -> Stages:
        """Return them as the plan takes them; `wait` and `fetch` as there."""
        mean = {name: max(0.0, one.mean) for name, one in self.times.items()}
        gpu = mean.get("augment (GPU)")
        names = ("read", "decode", "resize", "draw", "augment", "kept")
        return Stages(
            **{name: mean.get(name, 0.0) for name in names},
            other=mean["collate"],
            wait=wait,
            fetch=fetch,
            augment_gpu=gpu,
            augment_host=mean.get("issue augment", 0.0),
            hand_over=mean.get("hand over"),
        )


def measure_stages(rig: StepHarness, seconds: float) -> StageTimes:
    """Measure all stages that there are; about `seconds`, but each at least four times.

    Raises:
        DataError: none of the first samples can be decoded.
    """
    with _one_thread():
        chunks = _Chunks(rig.plan)
        windows = chunks.windows()
        if rig.device.type == "cuda":
            windows |= _on_gpu(rig)
            if why_not_resize(rig.device) is None:
                windows["hand over"] = chunks.handing_over()
        measured = in_rounds(windows, Rounds(seconds, most=4 * _CHUNKS, narrow=0.02))
    times = {name: interval(steady(values)) for name, values in measured.items()}
    whole = times.pop("make")
    named = sum(times[name].mean for name in ("read", "decode", "resize"))
    rest = max(0.0, whole.mean - named)
    times["collate"] = Interval(rest, max(0.0, rest - whole.half), rest + whole.half, whole.count)
    return StageTimes(times, chunks.image_bytes, chunks.bad)


class _Chunks:
    """Some samples, with everything that the stages need ready; each window does the next chunk."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        widths = plan.bucket_widths
        self.width = plan.resize.width if widths is None else int(np.bincount(widths).argmax())
        rows, self.bad = _good_rows(plan, self.width)
        self.rows = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
        self.encoded = [[plan.source.get(row).image for row in some] for some in self.rows]
        self.image_bytes = float(np.mean([len(data) for some in self.encoded for data in some]))
        self.pixels = [[decode(data, plan.resize.channels) for data in some] for some in self.encoded]

    def windows(self) -> dict[str, Callable[[], float]]:
        plan, resize = self.plan, self.plan.resize
        buffer = np.empty(_CHUNK * resize.height * self.width * resize.channels, np.uint8)
        unaugmented = replace(plan, augmentation=None)
        maker = BatchAssembler(unaugmented, None, np.zeros(len(plan.source), np.uint8), _Rows(self.rows))
        found = {
            "make": self._window(lambda number: maker.make(0, number, buffer)),
            "read": self._window(self._read),
            "decode": self._window(lambda number: [decode(data, resize.channels) for data in self.encoded[number]]),
            "resize": self._window(lambda number: [resize.apply(image) for image in self.pixels[number]]),
        }
        if plan.numbers is not None or plan.pipeline is not None:
            found |= self._augmenting()
        if plan.bucket_widths is None:
            found["kept"] = self._cached()
        return found

    def handing_over(self) -> Callable[[], float]:
        """Return the window of laying out decoded pictures for a GPU to fit."""
        resize = self.plan.resize
        shape = (_CHUNK, resize.height, self.width, resize.channels)
        buffer = np.empty(ragged_bytes(shape), np.uint8)

        def work(number: int) -> None:
            writer = RaggedWriter(buffer, shape, resize)
            for row, image in enumerate(self.pixels[number]):
                writer.put(row, image)

        return self._window(work)

    def _read(self, number: int) -> None:
        with self.plan.source.reading() as get:
            for row in self.rows[number]:
                get(row)

    def _augmenting(self) -> dict[str, Callable[[], float]]:
        plan, resize, width = self.plan, self.plan.resize, self.width
        batches = [np.zeros((len(some), resize.height, width, resize.channels), np.uint8) for some in self.rows]
        for batch, images in zip(batches, self.pixels, strict=True):
            for row, image in zip(batch, images, strict=True):
                resize.apply(image, out=row)
        if (pipeline := plan.pipeline) is not None:
            index = [np.array(some) for some in self.rows]
            return {"augment": self._window(lambda number: pipeline.apply(batches[number], 0, 0, index[number]))}
        assert plan.numbers is not None
        numbers = plan.numbers
        tables = [numbers.sample(0, 0, np.array(some), resize.height, width) for some in self.rows]
        every = np.arange(plan.batch_size)  # a whole batch: drawing a few rows costs hardly less than drawing many
        draw = self._window(lambda number: numbers.sample(0, number, every, resize.height, width), len(every))
        return {
            "draw": draw,
            "augment": self._window(lambda number: apply_cv(batches[number], tables[number])),
        }

    def _cached(self) -> Callable[[], float]:
        """Return the window of getting pictures that are kept in RAM."""
        resize, part = self.plan.resize, Subset(self.plan.source, [row for some in self.rows for row in some])
        cache = open_cache(CacheConfig("ram", 1.0), part, resize)
        assert cache is not None
        places, start = [], 0
        for images in self.pixels:
            index = np.arange(start, start + len(images))
            start += len(images)
            resized = np.stack([resize.apply(image)[0] for image in images])
            cache.write(index, resized, np.full(len(index), resize.width, np.int32))
            places.append((index, resized, np.empty(len(index), np.int32)))
        return self._window(lambda number: cache.read(*places[number]))

    def _window(self, work: Callable[[int], Any], images: int | None = None) -> Callable[[], float]:
        """Return the window of some work on a chunk, by its number; or on so many images, whatever the number."""
        turns = _turns(len(self.rows))

        def window() -> float:
            number = next(turns)
            began = perf_counter()
            work(number)
            return (perf_counter() - began) / (images or len(self.rows[number]))

        return window


@dataclass
class _Rows:
    """An order of batches for BatchAssembler: the chunks."""

    chunks: Sequence[Sequence[int]]

    def samples(self, epoch: int, number: int) -> NDArray[np.int64]:
        return np.array(self.chunks[number], np.int64)


def _turns(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


def _good_rows(plan: LoadPlan, width: int) -> tuple[list[int], int]:
    """Return samples that can be decoded, of one width where widths are free, at most a second's worth."""
    good: list[int] = []
    bad, began = 0, perf_counter()
    for row in range(len(plan.source)):
        if len(good) >= _CHUNK * _CHUNKS or (len(good) >= 2 and perf_counter() - began > 1.0):
            break
        if plan.bucket_widths is not None and plan.bucket_widths[row] != width:
            continue
        try:
            decode(plan.source.get(row).image, plan.resize.channels)
            good.append(row)
        except (DataError, OSError):
            bad += 1
            if bad >= _CHUNK * _CHUNKS:
                break
    if not good:
        raise DataError(f"{plan.source.name}: none of {bad} samples can be read; `inkmill check` shows why")
    return good, bad


def _on_gpu(rig: StepHarness) -> dict[str, Callable[[], float]]:
    """Return the windows of what happens on the GPU in a step of the user's."""
    host = next(iter(rig.cached.loader)).images
    pinned = torch.from_numpy(host).pin_memory()
    found = {"copy": _gpu_window(rig.clock, lambda: pinned.to(rig.device, non_blocking=True), len(host))}
    if rig.augment_on == "gpu":
        found |= _augmenting_on_gpu(rig.plan, rig.device, len(host))
    return found


def measure_gpu_augmentation(plan: LoadPlan, device: torch.device, batch_size: int, seconds: float) -> StageTimes:
    """Measure augmentation on a GPU, which takes tens of seconds more where it is compiled first.

    Returns:
        `augment (GPU)` and `issue augment`; neither, where this augmentation cannot be done there.
    """
    windows = _augmenting_on_gpu(plan, device, batch_size)
    measured = in_rounds(windows, Rounds(seconds, narrow=0.02)) if windows else {}
    return StageTimes({name: interval(steady(values)) for name, values in measured.items()}, 0.0)


def _augmenting_on_gpu(plan: LoadPlan, device: torch.device, batch_size: int) -> dict[str, Callable[[], float]]:
    numbers, resize = plan.numbers, plan.resize
    if numbers is None or plan.pipeline is not None or resize.mode == "height":
        return {}
    changes = DeferredAugmentation(numbers, 0, 0, np.arange(batch_size), resize.height, resize.width, batch_size)
    images = torch.randint(
        0, 256, (batch_size, resize.height, resize.width, resize.channels), dtype=torch.uint8, device=device
    )
    clock = GpuClock(device)

    def work() -> torch.Tensor:
        return apply_deferred(images, changes)

    return {
        "augment (GPU)": _gpu_window(clock, work, batch_size),
        "issue augment": lambda: clock.issue_s(work) / batch_size,
    }


def _gpu_window(clock: GpuClock, work: Callable[[], Any], size: int) -> Callable[[], float]:
    work()  # the first time may compile
    issue_s = clock.issue_s(work)
    return lambda: clock.gpu_s(work, issue_s) / size


@contextmanager
def _one_thread() -> Iterator[None]:
    """OpenCV without threads of its own, as in the workers."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        cv2.setNumThreads(before)
