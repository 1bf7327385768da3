"""Staging: what goes into DALI for each batch.

Unless DALI's own reader is asked for, the order is inkmill's: a batch is a pure function of (plan, epoch, number), as
for every other loader, so epochs are exact, nothing is reset, and resuming takes one integer. The encoded images of a
batch, the sizes to resize them to and the numbers that augment them go in together.

An image that DALI would not decode as inkmill does is decoded here and goes in as a bitmap. A batch with a sample that
cannot be read is decoded by `BatchAssembler`, which skips or reports that sample, and so is a batch that a pipeline
died of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from multiprocessing.heap import Arena
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill import shared_memory as shared
from inkmill.data.augment.random_numbers import sample_states
from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch
from inkmill.data.loaders.dali.inputs import (
    Inputs,
    Sizes,
    augment_inputs,
    dali_decodes,
    netpbm,
    padded_files,
    resize_inputs,
)
from inkmill.data.loaders.plan import LoadPlan, StageClock
from inkmill.data.pipeline.cache import ImageCache
from inkmill.data.pipeline.decode import decode, image_size
from inkmill.data.pipeline.image_header import read_header
from inkmill.data.pipeline.targets import has_polygons, move_targets, refuse_polygons, resize_target
from inkmill.data.types import Batch, Sample, as_targets
from inkmill.errors import DataError

if TYPE_CHECKING:
    from inkmill.data.loaders import AugmentOn
    from inkmill.data.loaders.dali.reader import DaliReader  # it imports DALI, which staging can do without

_PROBED = 64  # samples by which the memory for a batch is estimated

Index = NDArray[np.int64]


@dataclass(slots=True)
class StagedBatch:
    """A batch on its way through DALI.

    Attributes:
        epoch, number: which one.
        collated: the batch, its images still to come; None where `error` is set.
        inputs: of the graph.
        error: why it could not be staged; raised when its turn comes.
        fallback: whether `BatchAssembler` decoded it.
        stale: nobody waits for it any more.
    """

    epoch: int
    number: int
    collated: CollatedBatch | None
    inputs: Inputs
    error: Exception | None = None
    fallback: bool = False
    stale: bool = False


class BatchStager:
    """Stages any batch of a plan. Pickled into a process, it shares `blocked` and what it knows of sizes.

    Args:
        plan: what to load.
        cache: the cached pictures, or None; with a cache, pictures go in decoded and resized.
        blocked: shared bytes, one a sample: 1 where it is known to be bad and left out; read at each batch.
        augment_on: "dali" or "gpu"; see DaliLoader.
        reader: brings the encoded images, and their order; None reads the source in the plan's order.
        sizes: shared bytes, 12 a sample, zero at first; None allocates them.
    """

    def __init__(
        self,
        plan: LoadPlan,
        cache: ImageCache | None,
        blocked: Arena,
        augment_on: AugmentOn = "dali",
        reader: DaliReader | None = None,
        sizes: Arena | None = None,
    ) -> None:
        count = len(plan.source)
        self.plan = plan
        self._shared = (blocked, sizes or shared.allocate(12 * count))
        self._cache = cache
        self._reader = reader
        self._order = plan.order() if reader is None else reader
        self._resized = cache is not None
        self._blocked = np.frombuffer(blocked.buffer, np.uint8)
        # Of samples seen that DALI decodes: their headers are read once, not in every epoch and by every process.
        self._sizes: Sizes = np.frombuffer(self._shared[1].buffer, np.int32)[: 3 * count].reshape(count, 3)
        # Without augmentation, which DALI or its consumer does; polygons are moved all the same.
        self._augment_on: AugmentOn = augment_on
        unaugmented = replace(plan, augmentation=plan.numbers)
        self._assembler = BatchAssembler(unaugmented, cache, self._blocked, self._order, augment_on=augment_on)

    def __reduce__(self) -> tuple[Any, ...]:
        blocked, sizes = self._shared
        return BatchStager, (self.plan, self._cache, blocked, self._augment_on, self._reader, sizes)

    def stage(self, epoch: int, number: int, fallback: bool, memory: NDArray[np.uint8]) -> StagedBatch:
        """Stage one batch; never raises, since an error belongs to its batch and not to this moment.

        Args:
            epoch, number: which one.
            fallback: let `BatchAssembler` decode it.
            memory: uint8, at least `plan.batch_bytes` long; whole batches that are decoded here are written to its
                start.
        """
        try:
            if not (fallback or self._resized):
                try:
                    return self._stage_encoded(epoch, number, memory)
                except (DataError, OSError):
                    fallback = True
            return self._stage_decoded(epoch, number, fallback, memory)
        except Exception as error:
            return self.failed(epoch, number, error, fallback)

    def failed(self, epoch: int, number: int, error: Exception, fallback: bool = False) -> StagedBatch:
        """Return a stand-in for a batch that cannot be staged: DALI takes something each time."""
        return StagedBatch(epoch, number, None, self._placeholder(epoch), error, fallback)

    def _stage_encoded(self, epoch: int, number: int, memory: NDArray[np.uint8]) -> StagedBatch:
        plan, clock = self.plan, StageClock(number)
        # 1. Which samples, and how wide their batch is.
        wanted = self._order.samples(epoch, number)
        good = self._blocked[wanted] == 0
        index = wanted[good]
        if not len(index):
            return self._stage_decoded(epoch, number, True, memory)
        width = plan.resize.width if plan.bucket_widths is None else int(plan.bucket_widths[index[0]])
        # 2. Read them.
        with clock.whole("read"):
            samples = self._samples(epoch, number, good, index)
        # 3. Read the headers of images not seen before, and decode what is not for DALI.
        with clock.whole("decode"):
            images, sizes = self._images(index, [sample.image for sample in samples], width)
        batch = Batch(
            images=None,
            widths=sizes[:, 2],
            targets=as_targets(sample.target for sample in samples),
            keys=[sample.key for sample in samples],
            index=index,
        )
        collated = CollatedBatch(batch, [], len(wanted) - len(index), 0, 0)
        # 4. Draw the augmentation, and lay out the inputs.
        with clock.whole("augment"):
            self._follow_pictures(collated, samples, epoch, width)
            inputs = self._inputs(epoch, padded_files(images), sizes, width, index)
        collated.stages = clock.seconds()
        return StagedBatch(epoch, number, collated, inputs)

    def _samples(self, epoch: int, number: int, good: NDArray[np.bool_], index: Index) -> list[Sample]:
        source = self.plan.source
        if self._reader is None:
            with source.reading() as get:
                return [get(i) for i in index.tolist()]
        images = compress(self._reader.images(epoch, number), good)
        return [Sample(source.key(i), image, source.target(i)) for i, image in zip(index.tolist(), images, strict=True)]

    def _images(self, index: Index, images: list[bytes], width: int) -> tuple[list[bytes], Sizes]:
        """Return what DALI is to decode, and the sizes of that."""
        sizes = self._sizes[index]
        for row in np.flatnonzero((sizes == 0).any(axis=1)).tolist():  # any: another process may be writing it now
            original = images[row]
            images[row], sizes[row] = self._image(original, width)
            if images[row] is original:
                self._sizes[index[row]] = sizes[row]
        return images, sizes

    def _image(self, data: bytes, width: int) -> tuple[bytes, tuple[int, int, int]]:
        header, resize = read_header(data), self.plan.resize
        if resize.bucket_width(*header.upright_size) != width:
            raise DataError("this image belongs into another bucket")  # BatchAssembler's sentence is the one shown
        if dali_decodes(data, header, resize):
            across, down = header.upright_size
            return data, (down, across, resize.valid_width(across, down))
        image, valid = resize.apply(decode(data, resize.channels))
        return netpbm(image[:, :valid]), (resize.height, valid, valid)

    def _follow_pictures(self, collated: CollatedBatch, samples: list[Sample], epoch: int, width: int) -> None:
        """Resize and augment the targets that are polygons."""
        plan, batch = self.plan, collated.batch
        if not has_polygons(batch.targets):
            return
        if plan.pipeline is not None:
            refuse_polygons(batch.targets)
        pairs = ((sample.target, image_size(sample.image)) for sample in samples)
        batch.targets = [resize_target(target, plan.resize, size, collated.regions) for target, size in pairs]
        if plan.numbers is not None:
            params = plan.numbers.sample(plan.seed, epoch, batch.index, plan.resize.height, width)
            batch.targets = move_targets(batch.targets, params, collated.regions)

    def _stage_decoded(self, epoch: int, number: int, fallback: bool, memory: NDArray[np.uint8]) -> StagedBatch:
        """Stage a batch that is decoded and resized as in other loaders; DALI augments it, if anybody does."""
        collated = self._assembler.make(epoch, number, memory)
        batch = collated.batch
        if self.plan.pipeline is not None:
            refuse_polygons(batch.targets)
        if not len(batch):
            return StagedBatch(epoch, number, collated, self._placeholder(epoch), fallback=fallback)
        inputs = self._inputs(epoch, *self._pixels(batch.images, batch.widths), batch.index)
        return StagedBatch(epoch, number, collated, inputs, fallback=fallback)

    def _pixels(self, images: NDArray[np.uint8], widths: NDArray[np.int32]) -> tuple[Any, Sizes, int]:
        sizes = np.stack([np.full_like(widths, images.shape[1]), widths, widths], axis=1)
        if self._resized:
            return images, sizes, images.shape[2]
        bitmaps = [netpbm(image[:, :width]) for image, width in zip(images, widths, strict=True)]
        return padded_files(bitmaps), sizes, images.shape[2]

    def _placeholder(self, epoch: int) -> Inputs:
        """Return the inputs of one black picture: DALI takes no empty batch."""
        resize = self.plan.resize
        black = np.zeros((1, resize.height, resize.width, resize.channels), np.uint8)
        return self._inputs(epoch, *self._pixels(black, np.array([resize.width], np.int32)), np.zeros(1, np.int64))

    def _inputs(self, epoch: int, images: Any, sizes: Sizes, width: int, index: Index) -> Inputs:
        plan = self.plan
        inputs: Inputs = {"images": images}
        if not self._resized:
            inputs |= resize_inputs(sizes, plan.resize, width)
        if plan.pipeline is not None:
            inputs["random_states"] = sample_states(plan.seed, epoch, index)[:, None]
        elif plan.numbers is not None and self._augment_on != "gpu":
            params = plan.numbers.sample(plan.seed, epoch, index, plan.resize.height, width)
            inputs |= augment_inputs(params, plan.resize.channels)
        return inputs

    def input_names(self) -> list[str]:
        """Return the names of the inputs, which are the same for every batch."""
        return list(self._placeholder(0))

    def slot_bytes(self) -> int:
        """Return how much memory the inputs of a batch take: by some samples, and half as much again."""
        plan, resize = self.plan, self.plan.resize
        index = np.unique(np.linspace(0, len(plan.source) - 1, _PROBED).astype(np.int64))
        sizes = np.tile(np.array([resize.height, resize.width, resize.width], np.int32), (len(index), 1))
        inputs = self._inputs(0, np.empty(0, np.uint8), sizes, resize.width, index)
        arrays = [array for value in inputs.values() for array in (value if isinstance(value, list) else [value])]
        needed: int = sum(array.nbytes for array in arrays) * plan.batch_size // len(index)
        pictures = plan.batch_bytes if self._resized else 0
        if not self._resized:  # files are padded to the longest
            needed += max(map(self._encoded_bytes, index.tolist())) * plan.batch_size
        return pictures + needed * 3 // 2 + 2**16

    def _encoded_bytes(self, index: int) -> int:
        try:
            image: bytes = self.plan.source.get(index).image
        except (DataError, OSError):
            return 0
        return len(image)
