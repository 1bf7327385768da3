"""What the machine and the data can do: reading, each stage of an image, worker processes, other loaders.

Stages are not measured a second time: the loaders clock them whenever they assemble a batch (see StageClock), so a
loader in this process, alone with one core, says what each costs.

Cold reads: the data set's own files, and no others, are dropped from the page cache. The system promises nothing when
it is asked for that (pages that a process has mapped stay, and some file systems do not care), so it is looked up how
many bytes the next reads took from the storage, and a figure that would not be cold is not given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter, thread_time
from typing import get_args

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from inkmill.config.dataset import DatasetSpec
from inkmill.data.loaders import LOADERS, AugmentOn, LoadPlan, make_loader
from inkmill.data.loaders.base import Loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import Source, Subset
from inkmill.diagnose.timing import GpuClock, Rounds, measure_in_rounds, without_outliers
from inkmill.errors import DataError, InkmillError, MissingExtraError, first_line
from inkmill.machine import cores
from inkmill.perf.predict import ImageCost, Variant
from inkmill.perf.stats import Interval, interval

READERS = 16
"""Threads that read at a time."""

_COLD_SHARE = 0.5  # of the bytes read must come from the storage
_LEAST_READS, _MOST_READS = 8, 4000
_CLOCKED_BATCH = 256  # images
_LEAST_BATCHES = 4
_CACHED_IMAGES = 512
_PREFETCHED = 8  # batches that are left out: they were prefetched

Times = dict[str, Interval]
"""Seconds an image by stage, in the order of the work."""


@dataclass(frozen=True)
class Reading:
    """How the data set's storage behaves.

    Attributes:
        image_bytes: mean size of an encoded image.
        warm_s: a read from the page cache.
        cold_s: a read from the disk; None where reading could not be made cold.
        disk_wait_s: what a cold read takes longer, waiting; its core is free for others meanwhile.
        disk_cpu_s: what it takes longer of the core: the system's own work.
        notes: what was not measured and why.
    """

    image_bytes: float
    warm_s: float
    cold_s: float | None = None
    disk_wait_s: float = 0.0
    disk_cpu_s: float = 0.0
    notes: tuple[str, ...] = ()


def measure_reading(source: Source, seconds: float) -> Reading:
    """Measure reads of a source's samples, warm and cold, about `seconds`; the samples are in random order."""
    rows = range(min(len(source), _MOST_READS))
    seen = rows[: len(_reads(source, rows, seconds / 4).sizes)]  # which brings them into the page cache
    warm = _reads(source, seen, seconds / 4)
    image_bytes = float(np.mean(warm.sizes))
    # Drop the files, read again, and see where the bytes came from.
    if not drop(source, rows):
        note = "no cold figures: the samples lie in no file that can be dropped from the page cache"
        return Reading(image_bytes, warm.mean_s, notes=(note,))
    before = _bytes_from_storage()
    cold = _reads(source, rows, seconds / 2)
    if not _forgets(source) and _bytes_from_storage() - before < _COLD_SHARE * sum(cold.sizes):
        note = "no cold figures: files stay in memory though they were dropped from the page cache"
        return Reading(image_bytes, warm.mean_s, notes=(note,))
    on_core = max(0.0, cold.core_s - warm.core_s)
    wait = max(0.0, cold.mean_s - warm.mean_s - on_core)
    return Reading(image_bytes, warm.mean_s, cold.mean_s, wait, on_core)


@dataclass(frozen=True)
class _Reads:
    """Bytes of each image read; seconds a read on the clock and of the core."""

    sizes: list[int]
    mean_s: float
    core_s: float


def _reads(source: Source, rows: Sequence[int], seconds: float) -> _Reads:
    sizes: list[int] = []
    began, core = perf_counter(), thread_time()
    for row in rows:
        try:
            sizes.append(len(source.image(row)))
        except (DataError, OSError):
            sizes.append(0)
        if len(sizes) >= _LEAST_READS and perf_counter() - began > seconds:
            break
    return _Reads(sizes, (perf_counter() - began) / len(sizes), (thread_time() - core) / len(sizes))


def drop(source: Source, index: Sequence[int]) -> bool:
    """Drop the files of some samples from the page cache; return whether that can be asked for.

    A source that is no file may have a method `forget()`, which does the same in its own way.
    """
    forgetful = [leaf for leaf in source.leaves() if hasattr(leaf, "forget")]
    for leaf in forgetful:
        leaf.forget()
    if forgetful:
        return True
    source.release()  # what is mapped would stay
    files = source.files(index)
    if not files or not hasattr(os, "posix_fadvise"):
        return False
    for file in files:
        with suppress(OSError):
            _drop(file)
    return True


def _forgets(source: Source) -> bool:
    return any(hasattr(leaf, "forget") for leaf in source.leaves())


def _drop(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)  # what is not written back yet would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _bytes_from_storage() -> int:
    """Return how many bytes this process had read from storage since it began; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/self/io").read_text(encoding="ascii")
        return int(text.split("read_bytes:")[1].split()[0])
    return 0


def read_all(source: Source, index: Sequence[int]) -> None:
    """Read samples, so that their files are in the page cache; those that cannot be read are left out."""

    def read(row: int) -> None:
        with suppress(DataError, OSError):
            source.image(row)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, index, chunksize=1))


def seconds_an_image(source: Source, most_s: float) -> float:
    """Return about how long reading and decoding an image takes, from at most 64 of them."""
    began, done = perf_counter(), 0
    for row in range(min(64, len(source))):
        with suppress(DataError, OSError):
            decode(source.image(row), 3)
        done += 1
        if perf_counter() - began > most_s:
            break
    return (perf_counter() - began) / max(1, done)


def measure_stages(plan: LoadPlan, on_gpu: bool, seconds: float) -> Times:
    """Measure all stages of an image on one core, from the page cache.

    Args:
        plan: what is loaded; augmentation is measured where it can be: on the CPU.
        on_gpu: a GPU trains, which may resize what is streamed.
        seconds: about; at least four batches.

    Raises:
        DataError: none of the samples can be decoded.
    """
    plan = replace(plan, cache=CacheConfig(), batch_size=min(plan.batch_size, _CLOCKED_BATCH), max_bad=1.0)
    with _one_thread():
        # 1. What the user's batches are made of.
        times = _clocked(plan, "cpu", seconds / 2)
        if plan.augmentation is None:
            times.pop("augment", None)
        # 2. Taking an image from a cache.
        if plan.bucket_widths is None:
            some = Subset(plan.source, range(min(len(plan.source), _CACHED_IMAGES)))
            cache = CacheConfig("ram", 1.0)
            cached = replace(plan, source=some, cache=cache, augmentation=None, window=None, sizes=None)
            times["cache"] = _clocked(cached, "cpu", seconds / 4, epochs=1)["cache"]
        else:
            times.pop("cache", None)
        # 3. Laying an image out for a GPU to resize.
        if on_gpu and (ragged := _clocked(plan, "gpu", seconds / 4, ragged=True)):
            times["resize (GPU)"] = ragged["resize"]
    return times


def _clocked(plan: LoadPlan, augment_on: AugmentOn, seconds: float, epochs: int = 0, ragged: bool = False) -> Times:
    """Assemble batches in this thread, and return what the loader's own clock says of the stages.

    Args:
        plan: what is loaded.
        augment_on: who augments.
        seconds: about.
        epochs: that are left out first: they fill a cache.
        ragged: leave resizing to the GPU; nothing is returned where the loader cannot.
    """
    values: dict[str, list[float]] = {}
    if ragged and plan.pipeline is not None:
        return {}
    with closing(make_loader(plan, 0, augment_on=augment_on)) as loader:
        if ragged and loader.memory is not None:
            loader.memory.allow_ragged()
            if not loader.memory.ragged:
                return {}
        for _ in range(epochs):
            for _batch in loader.views():
                pass
        began, number = perf_counter(), 0
        while number < _LEAST_BATCHES or perf_counter() - began < seconds:
            before = dict(loader.stats.stages)
            for batch in loader.views():
                number += 1
                for stage, total in loader.stats.stages.items():
                    spent = (total - before.get(stage, 0.0)) / max(1, len(batch))
                    values.setdefault(stage, []).append(max(0.0, spent))
                before = dict(loader.stats.stages)
                if number >= _LEAST_BATCHES and perf_counter() - began > seconds:
                    break
        if not loader.stats.images:
            raise DataError(f"{plan.source.name}: none of the samples can be read; `inkmill check` shows why")
    return {stage: interval(without_outliers(some[1:] or some)) for stage, some in values.items()}  # the first warms up


def costs_of(times: Times, reading: Reading) -> ImageCost:
    """Return measured stages as the predictor takes them."""
    mean = {name: max(0.0, one.mean) for name, one in times.items()}
    return ImageCost(
        read=mean.get("read", 0.0),
        decode=mean.get("decode", 0.0),
        resize=mean.get("resize", 0.0),
        augment=mean.get("augment", 0.0),
        other=mean.get("other", 0.0),
        cached=mean.get("cache", 0.0),
        ragged=mean.get("resize (GPU)"),
        disk_wait=reading.disk_wait_s,
        disk_cpu=reading.disk_cpu_s,
        augment_gpu=mean.get("augment (GPU)"),
        augment_host=mean.get("launch augment (GPU)", 0.0),
    )


def measure_gpu_augmentation(plan: LoadPlan, device: torch.device, batch_size: int, seconds: float) -> Times:
    """Measure augmentation on a GPU, which takes tens of seconds more where it is compiled first.

    Returns:
        `augment (GPU)` and `launch augment (GPU)`; neither, where this augmentation is not possible there.
    """
    from inkmill.data.augment.gpu import apply_deferred
    from inkmill.data.augment.params import DeferredAugmentation

    numbers, resize = plan.numbers, plan.resize
    if numbers is None or plan.pipeline is not None or resize.buckets:
        return {}
    rows = np.arange(batch_size)
    clock = GpuClock(device)
    if plan.window is not None:
        work = _page_work(plan, plan.window, rows, device)
    else:
        deferred = DeferredAugmentation(numbers, 0, 0, rows, resize.height, resize.width, batch_size)
        shape = (batch_size, resize.height, resize.width, resize.channels)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)

        def work() -> torch.Tensor:
            return apply_deferred(images, deferred)

    work()  # the first time may compile
    launch_s = clock.launch_s(work)
    windows: dict[str, Callable[[], float]] = {
        "augment (GPU)": lambda: clock.gpu_s(work, launch_s) / batch_size,
        "launch augment (GPU)": lambda: clock.launch_s(work) / batch_size,
    }
    measured = measure_in_rounds(windows, Rounds(seconds, narrow=0.02))
    return {name: interval(without_outliers(values)) for name, values in measured.items()}


def _page_work(
    plan: LoadPlan, window: tuple[int, int], rows: NDArray[np.int64], device: torch.device
) -> Callable[[], torch.Tensor]:
    """Return the augmentation of a batch of parts of whole pictures, all as large as pictures can be."""
    from inkmill.data.augment.page_passes import PageAugmenter, Pages
    from inkmill.data.augment.windows import draw_windows, text_boxes

    numbers, height, width, channels = plan.numbers, plan.resize.height, plan.resize.width, plan.resize.channels
    assert numbers is not None
    size, count = height * width * channels, len(rows)
    memory = torch.randint(0, 256, (count * size,), dtype=torch.uint8, device=device)
    headers = np.stack([rows * size, *(np.full(count, side) for side in (height, width, width))], axis=1)
    pages = Pages(memory, torch.from_numpy(headers).to(device), channels)
    sides = np.tile([height, width], (count, 1))
    texts = text_boxes([np.empty((0, 4), np.float32)] * count, np.ones((count, 2)))
    drawn = draw_windows(numbers, 0, 0, rows, sides, window, texts)
    still = np.tile(np.eye(3, dtype=np.float32), (count, 1, 1))
    augmenter = PageAugmenter(numbers, count, window, device)
    return lambda: augmenter(0, 0, rows, pages, rows, drawn, still)[0]


def measure_efficiency(plan: LoadPlan, augment_on: str, costs: ImageCost, seconds: float) -> float:
    """Return what a worker process does when all cores work, as a share of what it does alone; from the page cache."""
    count = cores()
    if count == 1:
        return 1.0
    work = costs.fresh + costs.other + (costs.augment if augment_on == "cpu" else 0.0)
    size = max(1, min(plan.batch_size, len(plan.source) // (4 * count)))  # the sample holds some rounds of all workers
    plan = replace(plan, cache=CacheConfig(), batch_size=size)
    with closing(make_loader(plan, count, augment_on="gpu" if augment_on == "gpu" else "cpu")) as loader:
        return min(1.0, max(0.1, _throughput(loader, 2 * count, seconds) * work / count))


def variants() -> list[Variant]:
    """Return every way to open a loader that does not count workers: all values that the spec allows its options."""
    found: list[Variant] = []
    for info in LOADERS.values():
        if info.selectable and not info.processes:
            values = [get_args(DatasetSpec.model_fields[name].annotation) for name in info.options]
            found += [(info.name, tuple(zip(info.options, chosen, strict=True))) for chosen in product(*values)]
    return found


def measure_loader(
    plan: LoadPlan, variant: Variant, device: torch.device, seconds: float, cold: bool
) -> tuple[float | None, str]:
    """Return the images a second that a loader reaches by itself while the GPU augments, or None and why not.

    Args:
        plan: what is loaded.
        variant: the loader and its options.
        device: the GPU.
        seconds: about.
        cold: read from the disk.
    """
    name, options = variant
    words = " ".join([f"dataset.loader={name}", *(f"{key}={value}" for key, value in options)])
    plan = replace(plan, cache=CacheConfig())
    try:
        opened = make_loader(plan, cores(), name, augment_on="gpu", device=device, **dict(options))
        with closing(opened) as loader:
            if cold:
                drop(plan.source, range(len(plan.source)))
            return _throughput(loader, _PREFETCHED, seconds), ""
    except MissingExtraError:
        return None, ""
    except (InkmillError, RuntimeError, ValueError) as error:
        return None, f"{words} was not tried: {first_line(error)}"


def _throughput(loader: Loader, skipped: int, seconds: float) -> float:
    """Return images a second when nobody holds the loader up, after some batches that are left out."""
    images, number, began = 0, 0, perf_counter()
    while True:
        for batch in loader.views():
            number += 1
            if number == skipped:
                images, began = 0, perf_counter()
                continue
            images += len(batch)
            if number > skipped and perf_counter() - began > seconds:
                if loader.memory is None:  # its work is only queued on the device
                    torch.cuda.synchronize()
                return images / (perf_counter() - began)


@contextmanager
def _one_thread() -> Iterator[None]:
    """OpenCV without threads of its own, as in the workers."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        cv2.setNumThreads(before)
