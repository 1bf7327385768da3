"""One batch from a plan: the work that every loader does, whether in its own process, in threads or in workers.

A batch is a pure function of (plan, epoch, number). So any worker can make any batch, nothing has to be sent to it but
two integers, and loaders differ only in who calls `BatchAssembler.make` and where the pixels are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.plan import LoadPlan, Seconds, StageClock
from inkmill.data.loaders.rows import RaggedImages, ResizedImages, Rows, Shape
from inkmill.data.pipeline.cache import ImageCache
from inkmill.data.pipeline.decode import decode, image_size
from inkmill.data.pipeline.targets import Regions, has_polygons, move_targets, refuse_polygons, resize_target
from inkmill.data.types import Batch, Polygons, Sample, Target, Texts, as_targets
from inkmill.errors import DataError

if TYPE_CHECKING:
    from inkmill.data.loaders import AugmentOn

_BETWEEN = "\0"  # strings that are sent as one


class RowOrder(Protocol):
    """Says which samples make each batch."""

    def rows(self, epoch: int, number: int) -> NDArray[np.int64]:
        """Return the samples of a batch, int64 (B,)."""
        ...


class BadSampleError(DataError):
    """A sample that cannot be loaded, while the plan says that this is an error."""


@dataclass(slots=True)
class CollatedBatch:
    """A batch and what happened while it was made.

    Attributes:
        batch: its images are a view of the buffer they were made in.
        skipped: (index, key, reason) of samples found bad.
        left_out: rows missing from the batch: those skipped now, and those known to be bad.
        kept, damaged, regions: see Stats.
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
        targets = _joined(batch.targets.values) if isinstance(batch.targets, Texts) else batch.targets
        rest = (batch.index, batch.widths, _joined(batch.keys), targets, batch.ragged)
        counts = (self.skipped, self.left_out, self.cached, self.damaged, self.regions, self.stages)
        return batch.images.shape, rest, counts

    @staticmethod
    def unpack(packed: tuple[Any, ...], buffer: NDArray[np.uint8]) -> CollatedBatch:
        """Return what `pack` took apart.

        Args:
            packed: what it returned.
            buffer: holds the pixels; the batch's images are a view of it.
        """
        shape, (index, widths, keys, targets, ragged), counts = packed
        images = buffer[: int(np.prod(shape))].reshape(shape)
        targets = _apart(targets)
        if targets and type(targets[0]) is str:
            targets = Texts(targets)
        return CollatedBatch(Batch(images, widths, targets, _apart(keys), index, ragged=ragged), *counts)


def _joined(strings: list[str]) -> str | list[str]:
    """Return strings as one, sent and taken apart in half the time of a list, or the list where that cannot be."""
    joined = _BETWEEN.join(strings)
    return joined if joined.count(_BETWEEN) == len(strings) - 1 else strings


def _apart(strings: Any) -> Any:
    return strings.split(_BETWEEN) if isinstance(strings, str) else strings


class BatchAssembler:
    """Makes any batch of a plan.

    Args:
        plan: what to load.
        store: the cached pictures, or None.
        blocked: bool or uint8 (N,), samples known to be bad, which are left out; read at each batch.
        order: which samples make each batch; the plan's where None.
        fits: whether batches hold resized pictures; else what `rows.RaggedImages` wrote, in one dimension, and
            `Batch.ragged` is the shape it is to be resized to.
        augment_on: "cpu" augments here; else only polygons are moved as the one who augments moves their picture.
    """

    def __init__(
        self,
        plan: LoadPlan,
        cache: ImageCache | None,
        blocked: NDArray[Any],
        order: RowOrder | None = None,
        fits: bool = True,
        augment_on: AugmentOn = "cpu",
    ) -> None:
        self._plan, self._cache, self._blocked, self._fits = plan, cache, blocked, fits
        self._order = plan.order() if order is None else order
        self._augments = augment_on == "cpu"
        if plan.augmentation is not None and self._augments:
            from inkmill.data.augment.cpu import apply_cv

            self._apply_cv = apply_cv

    def make(self, epoch: int, number: int, buffer: NDArray[np.uint8]) -> CollatedBatch:
        """Make one batch.

        Args:
            epoch, number: which one.
            buffer: uint8, at least `rows.batch_bytes` long; the pixels are written to its start.

        Raises:
            BadSampleError: a sample cannot be loaded, and the plan does not skip.
        """
        clock = StageClock(number)
        wanted = self._order.rows(epoch, number)
        index = wanted[self._blocked[wanted] == 0]
        shape = self._shape(index)
        rows = (ResizedImages if self._fits else RaggedImages)(buffer, shape, self._plan.resize)
        widths = np.empty(len(index), np.int32)
        hit, damaged = np.zeros(len(index), np.bool_), 0
        if self._cache is not None:
            with clock.whole("cache"):
                hit, damaged = self._cache.read(index, rows.images, widths)
        regions = Regions()
        keys, targets, skipped = self._load(index, rows, widths, hit, regions, clock)
        good = np.array([key is not None for key in keys], np.bool_)
        if self._cache is not None and not hit.all():
            new = slice(None) if good.all() and not hit.any() else good & ~hit  # a slice copies nothing
            with clock.whole("cache"):
                self._cache.write(index[new], rows.images[new], widths[new])
        if skipped:
            rows.only(good)
            widths, index = widths[good], index[good]
            shape = (len(index), *shape[1:])
        batch = Batch(
            images=rows.images,
            widths=widths,
            targets=as_targets(t for t in targets if t is not None),
            keys=[k for k in keys if k is not None],
            index=index,
            ragged=None if self._fits else shape,
        )
        with clock.whole("augment"):
            self._augment(batch, epoch, shape, regions)
        return CollatedBatch(
            batch, skipped, len(wanted) - len(index), int(hit.sum()), damaged, regions, clock.seconds()
        )

    def _shape(self, index: NDArray[np.int64]) -> Shape:
        resize, buckets = self._plan.resize, self._plan.bucket_widths
        width = resize.width if buckets is None or not len(index) else int(buckets[index[0]])
        return len(index), resize.height, width, resize.channels

    def _load(
        self,
        index: NDArray[np.int64],
        rows: Rows,
        widths: NDArray[np.int32],
        hit: NDArray[np.bool_],
        regions: Regions,
        clock: StageClock,
    ) -> tuple[list[str | None], list[Target | None], list[tuple[int, str, str]]]:
        """Read, decode and write the rows that are not kept, and fit all targets; None stands for a bad row."""
        if hit.all() and (cached := self._all_kept(index)) is not None:
            return cached
        keys: list[str | None] = []
        targets: list[Target | None] = []
        skipped: list[tuple[int, str, str]] = []
        with clock.rows(len(index)) as clocks, self._plan.source.reading() as get:
            for row, (sample_index, clocked) in enumerate(zip(index.tolist(), clocks, strict=True)):
                try:
                    if hit[row]:
                        key, target = self._cached(sample_index, regions)
                    else:
                        key, target, widths[row] = self._made(get, sample_index, rows, row, regions, clocked)
                except (DataError, OSError) as error:
                    skipped.append(self._bad(sample_index, error))
                    keys.append(None)
                    targets.append(None)
                else:
                    keys.append(key)
                    targets.append(target)
        return keys, targets, skipped

    def _all_kept(
        self, index: NDArray[np.int64]
    ) -> tuple[list[str | None], list[Target | None], list[tuple[int, str, str]]] | None:
        """Return what `_load` does, by one question to the source; None where each row needs a look of its own."""
        try:
            keys, targets = self._plan.source.described(index.tolist())
        except (DataError, OSError):
            return None
        return None if has_polygons(targets) else (list(keys), list(targets), [])

    def _cached(self, index: int, regions: Regions) -> tuple[str, Target]:
        source = self._plan.source
        target = source.target(index)
        if isinstance(target, Polygons):  # the size of their picture was not kept; its header tells
            target = resize_target(target, self._plan.resize, image_size(source.get(index).image), regions)
        return source.key(index), target

    def _made(
        self,
        get: Callable[[int], Sample],
        index: int,
        rows: Rows,
        row: int,
        regions: Regions,
        clock: StageClock | None,
    ) -> tuple[str, Target, int]:
        if clock is not None:
            clock.start()
        resize, sample = self._plan.resize, get(index)
        if clock is not None:
            clock.lap("read")
        image = decode(sample.image, resize.channels)
        if clock is not None:
            clock.lap("decode")
        height, width = image.shape[:2]
        if (columns := resize.bucket_width(width, height)) != rows.width:
            raise DataError(f"the image is resized to {columns} columns where its bucket has {rows.width}")
        valid = rows.put(row, image)
        if clock is not None:
            clock.lap("resize")
        target = resize_target(sample.target, resize, (width, height), regions)
        if clock is not None:
            clock.lap("other")
        return sample.key, target, valid

    def _bad(self, index: int, error: Exception) -> tuple[int, str, str]:
        key = self._plan.source.key(index)
        if self._plan.on_bad_sample != "raise":
            return index, key, str(error)
        raise BadSampleError(
            f"sample {key!r} of {self._plan.source.name} cannot be loaded: {error}"
            " (remove it, or set dataset.on_bad_sample=skip or quarantine)"
        ) from error

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
