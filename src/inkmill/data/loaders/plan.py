"""What a loader is asked to do (LoadPlan), what it counts while it does (Stats), and the clock of its stages."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import image_size
from inkmill.data.pipeline.order import BatchOrder, Order
from inkmill.data.pipeline.pages import PageResize, bucket_size
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources.base import Source
from inkmill.errors import DataError

if TYPE_CHECKING:
    from inkmill.data.augment.albumentations import AlbumentationsPipeline
    from inkmill.data.augment.augmentation import Augmentation

Stage = Literal["read", "decode", "resize", "cache", "augment", "other"]
STAGES: tuple[Stage, ...] = ("read", "decode", "resize", "cache", "augment", "other")

Seconds = dict[str, float]
"""Seconds by stage."""

_EVERY = 16  # samples, of which one is clocked
_PART = 512  # samples a task of measure_buckets


@dataclass(frozen=True, slots=True, eq=False)
class LoadPlan:
    """Everything that decides what the batches hold, and nothing else.

    Two loaders with one plan give the same batches to the last byte, if the same one augments (`AugmentOn`).

    Attributes:
        source: the samples.
        resize: how pictures meet the model's input; its channels are the batch's.
        augmentation: random changes, or None. An Albumentations pipeline runs on the CPU alone.
        batch_size: samples a batch and rank.
        seed: of order and augmentation.
        shuffle: a new order each epoch; False for validation.
        rank, world_size: which part of each global batch, batch_size * world_size samples, is loaded here.
        bucket_widths: int (N,), the resized width of each sample; needed where `resize.buckets`, and measured by
            `make_loader` where None.
        on_bad_sample: "raise"; "skip": the sample is left out of its batch, counted, and not tried again; "quarantine":
            the same, and the encoded image is copied to the folder `quarantine`, which lists the reasons.
        max_bad: share of the samples that may be skipped before loading stops with an error; one always may.
        cache: where resized pictures are kept.
        quarantine: folder for copies of bad samples; see `data.jobs.rejects`.
        sizes: int32 (N, 2), width and height of every picture; needed where `resize` is a `PageResize`, and measured by
            `make_loader` where None.
        window: height and width of the part of a whole picture that the model sees in training; None: all of it.

    Raises:
        DataError: the source is empty.
    """

    source: Source
    resize: Resize
    augmentation: Augmentation | AlbumentationsPipeline | None = None
    batch_size: int = 32
    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1
    bucket_widths: NDArray[np.integer] | None = None
    on_bad_sample: Literal["raise", "skip", "quarantine"] = "raise"
    max_bad: float = 0.01
    cache: CacheConfig = field(default_factory=CacheConfig)
    quarantine: Path | None = None
    sizes: NDArray[np.int32] | None = None
    window: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if len(self.source) == 0:
            raise DataError(f"{self.source.name} holds no samples: there is nothing to load")
        if self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(f"batch_size {self.batch_size}, rank {self.rank} of {self.world_size} cannot be")
        if self.on_bad_sample == "quarantine" and self.quarantine is None:
            raise ValueError("on_bad_sample='quarantine' needs the folder `quarantine`")
        if self.bucket_widths is not None and len(self.bucket_widths) != len(self.source):
            raise ValueError(f"{len(self.bucket_widths)} bucket widths for {len(self.source)} samples")
        if self.window is not None and (self.numbers is None or not self.numbers.layout.space):
            raise ValueError("a window needs an augmentation that has a matrix: see Augmentation.for_windows")
        if isinstance(self.resize, PageResize) and self.window is None and self.augmentation is not None:
            raise ValueError("whole pictures are augmented where a window of them is seen: give LoadPlan.window")

    def order(self) -> BatchOrder:
        """Return which samples make each batch."""
        order = Order(len(self.source), self.seed, self.shuffle)
        return BatchOrder(order, self.batch_size, self.rank, self.world_size, self.bucket_widths)

    @property
    def numbers(self) -> Augmentation | None:
        """The augmentation, where it is numbers that any engine can apply."""
        changes = self.augmentation
        return changes if changes is not None and changes.kind == "numbers" else None

    @property
    def pipeline(self) -> AlbumentationsPipeline | None:
        """The augmentation, where it is code that runs where batches are made."""
        changes = self.augmentation
        return changes if changes is not None and changes.kind == "code" else None

    @property
    def largest_batch(self) -> int:
        """Samples of the largest batch: no batch holds a sample twice, so memory need not be larger than the set."""
        return min(self.batch_size, len(self.source))

    @property
    def batch_bytes(self) -> int:
        """Size of the pictures of the largest batch, resized."""
        if isinstance(self.resize, PageResize):
            buckets = () if self.bucket_widths is None else map(bucket_size, np.unique(self.bucket_widths).tolist())
            shapes = [self.window] if self.window is not None else list(buckets)
            return self.largest_batch * self.resize.channels * max((h * w for h, w in shapes), default=0)
        return self.largest_batch * self.resize.most_pixels * self.resize.channels


def measure_buckets(source: Source, resize: Resize) -> NDArray[np.int32]:
    """Return the resized width of every sample, from the headers of its images.

    Returns:
        int32 (N,); a sample that cannot be read gets the full width, and is dealt with when its batch is made.
    """

    def part(start: int) -> list[int]:
        return [_width(source, resize, index) for index in range(start, min(start + _PART, len(source)))]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # reading waits for the disk, not for a core
        parts = list(pool.map(part, range(0, len(source), _PART)))
    return np.array([width for widths in parts for width in widths], np.int32)


def measure_sizes(source: Source) -> NDArray[np.int32]:
    """Return width and height of every picture as it is displayed: int32 (N, 2), from their headers.

    A sample that cannot be read gets 1 and 1, and is dealt with when its batch is made.
    """

    def part(start: int) -> list[tuple[int, int]]:
        return [_size(source, index) for index in range(start, min(start + _PART, len(source)))]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        parts = list(pool.map(part, range(0, len(source), _PART)))
    return np.array([size for sizes in parts for size in sizes], np.int32).reshape(-1, 2)


def page_buckets(sizes: NDArray[np.int32], resize: PageResize) -> NDArray[np.int64]:
    """Return which input size each picture has: int64 (N,) of `PageResize.bucket`."""
    return np.array([resize.bucket(width, height) for width, height in sizes.tolist()], np.int64)


def _size(source: Source, index: int) -> tuple[int, int]:
    try:
        return image_size(source.get(index).image)
    except (DataError, OSError):
        return 1, 1


def _width(source: Source, resize: Resize, index: int) -> int:
    try:
        return resize.bucket_width(*image_size(source.get(index).image))
    except (DataError, OSError):
        return resize.width


def positions(epoch: int, first: int, length: int, endless: bool) -> Iterator[tuple[int, int]]:
    """Yield the (epoch, number) of the batches to come: the rest of an epoch, and if endless, all later epochs."""
    yield from ((epoch, number) for number in range(first, length))
    while endless:
        epoch += 1
        yield from ((epoch, number) for number in range(length))


@dataclass(slots=True)
class Stats:
    """What a loader did since it was made.

    Attributes:
        images, batches: handed over.
        waited_s: seconds the consumer stood waiting for data. A GPU that works through its queue may be busy all the
            while: see `stalled_s`.
        idle_s: seconds a GPU that had done all its work waited for data; None where batches do not end on a GPU.
        copy_s: seconds it then waited for the batch's copy.
        stages: seconds by stage that making these images took, of all workers together; see StageClock.
        left_out: samples missing from batches because their sample is bad; the same sample counts in every epoch.
        skipped: the keys of the bad samples, by reason.
        cached: pictures that came from the cache rather than from the source.
        damaged: cached pictures whose checksum was wrong; they were decoded again.
        regions: polygons "clipped" at the picture's border, or dropped: "degenerate", "outside", "mostly outside".
        notes: fallbacks and limits a user should know about, one sentence each.
    """

    images: int = 0
    batches: int = 0
    waited_s: float = 0.0
    idle_s: float | None = None
    copy_s: float = 0.0
    stages: Seconds = field(default_factory=dict)
    left_out: int = 0
    skipped: dict[str, list[str]] = field(default_factory=dict)
    cached: int = 0
    damaged: int = 0
    regions: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def stalled_s(self) -> float:
        """Seconds that training lost to loading: of the GPU where there is one, else of the consumer."""
        return self.waited_s if self.idle_s is None else self.idle_s + self.copy_s

    @property
    def bad_samples(self) -> int:
        """Number of distinct samples that were skipped."""
        return sum(len(keys) for keys in self.skipped.values())


# Where those who assemble batches spend their time, so that a loader that is too slow can say what would help. Clocking
# every picture would slow down what is measured. So of the stages that go picture by picture (read, decode, resize) the
# time of all samples is clocked as a whole, and shared out as one picture in sixteen took it. What goes batch by batch
# is clocked by itself. What is left is "other": order, labels, laying out. Seconds are those on the wall: a worker that
# waits for the disk is reading, one that waits for a core is at whatever it wants the core for.


class StageClock:
    """Clocks the making of one batch, which begins with the clock.

    Args:
        number: of the batch; other samples are clocked in other batches.
    """

    __slots__ = ("_began", "_last", "_number", "_samples_s", "_shares", "_whole")

    def __init__(self, number: int) -> None:
        self._number = number
        self._whole: Seconds = dict.fromkeys(STAGES, 0.0)
        self._shares: Seconds = dict.fromkeys(STAGES, 0.0)
        self._samples_s = 0.0
        self._began = self._last = perf_counter()

    @contextmanager
    def whole(self, stage: Stage) -> Iterator[None]:
        """Clock a piece of work on the whole batch."""
        began = perf_counter()
        yield
        self._whole[stage] += perf_counter() - began

    @contextmanager
    def samples(self, count: int) -> Iterator[list[Self | None]]:
        """Clock the work on all samples, and give for each the clock, where it is to be clocked by itself, or None."""
        clocks: list[Self | None] = [None] * count
        clocked = range(self._number % min(_EVERY, count or 1), count, _EVERY)  # at least one
        clocks[clocked.start :: _EVERY] = [self] * len(clocked)
        began = perf_counter()
        yield clocks
        self._samples_s += perf_counter() - began

    def start(self) -> None:
        """Begin with a sample."""
        self._last = perf_counter()

    def lap(self, stage: Stage) -> None:
        """Count what passed of a sample since its start, or since its last lap."""
        now = perf_counter()
        self._shares[stage] += now - self._last
        self._last = now

    def seconds(self) -> Seconds:
        """Return the seconds by stage, which add up to those since the clock was made."""
        clocked = sum(self._shares.values())
        seconds = dict(self._whole)
        if clocked:
            for stage, share in self._shares.items():
                seconds[stage] += self._samples_s * share / clocked
        seconds["other"] += perf_counter() - self._began - sum(seconds.values())
        return seconds


def add(total: Seconds, seconds: Seconds) -> None:
    """Add the seconds of a batch to a sum."""
    for stage, some in seconds.items():
        total[stage] = total.get(stage, 0.0) + some
