"""One batch from a plan: the work that every loader does, in its own process or in workers.

A batch is a pure function of (plan, epoch, number). So any worker can assemble any batch, nothing has to be sent to it
but two integers, and loaders differ only in who calls `BatchAssembler.make` and where the pixels are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.images import Pixels, RaggedImages, RaggedWriter, ResizedWriter, Shape
from inkmill.data.loaders.plan import LoadPlan, Seconds, StageClock
from inkmill.data.pipeline.cache import ImageCache
from inkmill.data.pipeline.decode import decode, image_size
from inkmill.data.pipeline.targets import Regions, has_polygons, move_targets, refuse_polygons, resize_target
from inkmill.data.types import Batch, Polygons, Sample, Target, Texts, as_targets
from inkmill.errors import DataError

if TYPE_CHECKING:
    from inkmill.data.loaders import AugmentOn

_SEPARATOR = "\0"  # between strings that are sent as one


class SampleOrder(Protocol):
    """Says which samples make each batch."""

    def samples(self, epoch: int, number: int) -> NDArray[np.int64]:
        """Return the indices of a batch's samples, int64 (B,)."""
        ...


class BadSampleError(DataError):
    """A sample that cannot be loaded, while the plan says that this is an error."""


@dataclass(slots=True)
class CollatedBatch:
    """A batch and what happened while it was assembled.

    Attributes:
        batch: its images are a view of the buffer they were written to.
        skipped: (index, key, reason) of samples found bad.
        left_out: samples missing from the batch: those skipped now, and those known to be bad.
        cached, damaged, regions: see Stats.
        stages: seconds by stage that it took.
    """

    batch: Batch
    skipped: list[tuple[int, str, str]]
    left_out: int
    cached: int
    damaged: int
    regions: Regions = field(default_factory=Counter)
    stages: Seconds = field(default_factory=dict)

    def pack(self) -> tuple[Any, ...]:
        """Return all but the pixels, cheap to send: the keys as one string, and so the targets where all are text."""
        batch = self.batch
        ragged = isinstance(batch.images, RaggedImages)
        images = (
            batch.images.shape,
            type(batch.images) if ragged else None,
            batch.images.memory.nbytes if ragged else 0,
        )
        targets = _joined(batch.targets.values) if isinstance(batch.targets, Texts) else batch.targets
        counts = (self.skipped, self.left_out, self.cached, self.damaged, self.regions, self.stages)
        places = (batch.sizes, batch.matrix, batch.window)
        return images, (batch.index, batch.widths, _joined(batch.keys), targets), places, counts

    @staticmethod
    def unpack(packed: tuple[Any, ...], buffer: Pixels) -> CollatedBatch:
        """Return what `pack` packed.

        Args:
            packed: what it returned.
            buffer: holds the pixels; the batch's images are a view of it.
        """
        (shape, kind, ragged_bytes), (index, widths, keys, targets), (sizes, matrix, window), counts = packed
        ragged = None if kind is None else kind(buffer[:ragged_bytes], shape)
        images = buffer[: prod(shape)].reshape(shape) if ragged is None else ragged
        targets = _split(targets)
        if targets and type(targets[0]) is str:
            targets = Texts(targets)
        batch = Batch(images, widths, targets, _split(keys), index, sizes=sizes, matrix=matrix, window=window)
        return CollatedBatch(batch, *counts)


def _joined(strings: list[str]) -> str | list[str]:
    """Return strings as one, which is sent and split in half the time of a list, or the list where that cannot be."""
    joined = _SEPARATOR.join(strings)
    return joined if joined.count(_SEPARATOR) == len(strings) - 1 else strings


def _split(strings: Any) -> Any:
    return strings.split(_SEPARATOR) if isinstance(strings, str) else strings


class BatchAssembler:
    """Assembles any batch of a plan.

    Args:
        plan: what to load.
        cache: the cached images, or None.
        blocked: bool or uint8 (N,), samples known to be bad, which are left out; read at each batch.
        order: which samples make each batch; the plan's where None.
        ragged: batches hold `RaggedImages`; for plans without cache and augmentation here.
        augment_on: "cpu" augments here; else only polygons are moved as the one who augments moves their image.
    """

    def __init__(
        self,
        plan: LoadPlan,
        cache: ImageCache | None,
        blocked: NDArray[Any],
        order: SampleOrder | None = None,
        ragged: bool = False,
        augment_on: AugmentOn = "cpu",
    ) -> None:
        self._plan = plan
        self._cache = cache
        self._blocked = blocked
        self._ragged = ragged
        self._order = plan.order() if order is None else order
        self._augments = augment_on == "cpu"
        if plan.augmentation is not None and self._augments:
            from inkmill.data.augment.cpu import apply_cv

            self._apply_cv = apply_cv

    def make(self, epoch: int, number: int, buffer: Pixels) -> CollatedBatch:
        """Assemble one batch.

        Args:
            epoch, number: which one.
            buffer: uint8, at least `HostMemory.batch_bytes` long; the pixels are written to its start.

        Raises:
            BadSampleError: a sample cannot be loaded, and the plan does not skip.
        """
        clock = StageClock(number)
        # 1. Which samples, and how large their images will be.
        wanted = self._order.samples(epoch, number)
        index = wanted[self._blocked[wanted] == 0]
        shape = self._shape(index)
        writer = (RaggedWriter if self._ragged else ResizedWriter)(buffer, shape, self._plan.resize)
        widths = np.empty(len(index), np.int32)
        # 2. Copy the images that are cached. No batch is both cached and ragged.
        hit, damaged = np.zeros(len(index), np.bool_), 0
        if self._cache is not None:
            assert isinstance(writer, ResizedWriter)
            with clock.whole("cache"):
                hit, damaged = self._cache.read(index, writer.images, widths)
        # 3. Read, decode and resize the others.
        regions = Regions()
        keys, targets, skipped = self._load(index, writer, shape[2], widths, hit, regions, clock)
        good = np.array([key is not None for key in keys], np.bool_)
        # 4. Cache these, before augmentation changes them.
        if self._cache is not None and not hit.all():
            assert isinstance(writer, ResizedWriter)
            new = slice(None) if good.all() and not hit.any() else good & ~hit  # a slice copies nothing
            with clock.whole("cache"):
                self._cache.write(index[new], writer.images[new], widths[new])
        # 5. Close the gaps that bad samples left.
        images = writer.close(good)
        if skipped:
            widths = widths[good]
            index = index[good]
        batch = Batch(
            images=images,
            widths=widths,
            targets=as_targets(t for t in targets if t is not None),
            keys=[k for k in keys if k is not None],
            index=index,
        )
        # 6. Augment in place; polygons move along, whoever augments.
        with clock.whole("augment"):
            self._augment(batch, epoch, shape, regions)
        left_out = len(wanted) - len(index)
        return CollatedBatch(batch, skipped, left_out, int(hit.sum()), damaged, regions, clock.seconds())

    def _shape(self, index: NDArray[np.int64]) -> Shape:
        resize, buckets = self._plan.resize, self._plan.bucket_widths
        width = resize.width if buckets is None or not len(index) else int(buckets[index[0]])
        return len(index), resize.rows(width), width, resize.channels

    def _load(
        self,
        index: NDArray[np.int64],
        writer: ResizedWriter | RaggedWriter,
        width: int,
        widths: NDArray[np.int32],
        hit: NDArray[np.bool_],
        regions: Regions,
        clock: StageClock,
    ) -> tuple[list[str | None], list[Target | None], list[tuple[int, str, str]]]:
        """Read, decode and write the images that are not cached, and resize all targets; None stands for a bad one."""
        if hit.all() and (cached := self._all_cached(index)) is not None:
            return cached
        keys: list[str | None] = []
        targets: list[Target | None] = []
        skipped: list[tuple[int, str, str]] = []
        source = self._plan.source
        missing = index[~hit].tolist() if source.together else ()
        with clock.samples(len(index)) as clocks, source.reading(missing) as get:
            for number, (sample_index, clocked) in enumerate(zip(index.tolist(), clocks, strict=True)):
                key: str | None
                target: Target | None
                try:
                    if hit[number]:
                        key, target = self._cached_labels(sample_index, regions)
                    else:
                        sample, valid, size = self._written(get, sample_index, writer, number, width, clocked)
                        key, widths[number] = sample.key, valid
                        target = resize_target(sample.target, self._plan.resize, size, regions)
                        if clocked is not None:
                            clocked.lap("other")
                except (DataError, OSError) as error:
                    skipped.append(self._bad(sample_index, error))
                    key = target = None
                keys.append(key)
                targets.append(target)
        return keys, targets, skipped

    def _all_cached(
        self, index: NDArray[np.int64]
    ) -> tuple[list[str | None], list[Target | None], list[tuple[int, str, str]]] | None:
        """Return what `_load` does, by one question to the source; None where each sample must be asked for alone."""
        try:
            keys, targets = self._plan.source.described(index.tolist())
        except (DataError, OSError):
            return None
        return None if has_polygons(targets) else (list(keys), list(targets), [])

    def _cached_labels(self, index: int, regions: Regions) -> tuple[str, Target]:
        source = self._plan.source
        target = source.target(index)
        if isinstance(target, Polygons):  # the size of their picture is not cached; its header tells
            target = resize_target(target, self._plan.resize, image_size(source.get(index).image), regions)
        return source.key(index), target

    def _written(
        self,
        get: Callable[[int], Sample],
        index: int,
        writer: ResizedWriter | RaggedWriter,
        number: int,
        width: int,
        clock: StageClock | None,
    ) -> tuple[Sample, int, tuple[int, int]]:
        """Write one image; return its sample, the columns that it fills, and the (width, height) it was decoded to."""
        if clock is not None:
            clock.start()
        resize, sample = self._plan.resize, get(index)
        if clock is not None:
            clock.lap("read")
        image = decode(sample.image, resize.channels)
        if clock is not None:
            clock.lap("decode")
        size = (image.shape[1], image.shape[0])
        if (columns := resize.bucket_width(*size)) != width:
            raise DataError(f"the image is resized to {columns} columns where its bucket has {width}")
        valid = writer.put(number, image)
        if clock is not None:
            clock.lap("resize")
        return sample, valid, size

    def _bad(self, index: int, error: Exception) -> tuple[int, str, str]:
        return bad_sample(self._plan, index, error)

    def _augment(self, batch: Batch, epoch: int, shape: Shape, regions: Regions) -> None:
        plan = self._plan
        if plan.pipeline is not None:
            refuse_polygons(batch.targets)
            batch.images[...] = plan.pipeline.apply(batch.images, plan.seed, epoch, batch.index)
        if plan.numbers is None or not len(batch) or not (self._augments or has_polygons(batch.targets)):
            return
        table = plan.numbers.sample(plan.seed, epoch, batch.index, *shape[1:3])
        batch.targets = move_targets(batch.targets, table, regions)
        if self._augments:
            batch.images[...] = self._apply_cv(batch.images, table)


def bad_sample(plan: LoadPlan, index: int, error: Exception) -> tuple[int, str, str]:
    """Return index, key and reason of a sample that cannot be loaded, where the plan skips such.

    Raises:
        BadSampleError: it does not.
    """
    key = plan.source.key(index)
    if plan.on_bad_sample != "raise":
        return index, key, str(error)
    raise BadSampleError(
        f"sample {key!r} of {plan.source.name} cannot be loaded: {error}"
        " (remove it, or set dataset.on_bad_sample=skip or quarantine)"
    ) from error
