"""What a DALI loader feeds its pipeline with, batch by batch.

Unless DALI's reader is asked for (`dali_reader`), the order is ours: each batch is a pure function of (plan, epoch,
number), as for every other loader, so epochs are exact, nothing is reset, and resuming is one integer. The encoded
images of a batch, the numbers that fit them and the numbers that augment them go in together.

An image that DALI would not decode as inkmill does is decoded here and goes in as a bitmap. A batch with a sample that
cannot be read is made by `BatchAssembler`, which knows what to do with it, and so is a batch that a pipeline died of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import row_states
from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch
from inkmill.data.loaders.dali.columns import Columns, columns_of
from inkmill.data.loaders.dali.reader import DaliReader
from inkmill.data.loaders.dali.resize import Sizes, dali_decodes, files, netpbm, resize_columns
from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.loaders.stages import StageClock
from inkmill.data.pipeline.cache import ImageCache
from inkmill.data.pipeline.decode import decode, image_size
from inkmill.data.pipeline.image_header import read_header
from inkmill.data.pipeline.targets import has_polygons, move_targets, refuse_polygons, resize_target
from inkmill.data.types import Batch, Sample, as_targets
from inkmill.errors import DataError

Index = NDArray[np.int64]


@dataclass(slots=True)
class Fed:
    """A batch on its way through DALI.

    Attributes:
        epoch, number: which one.
        made: the batch, its images still to come; None where `error` is set.
        columns: the graph's inputs.
        error: why it could not be made; raised when its turn comes.
        careful: whether `BatchAssembler` decoded it.
        stale: nobody waits for it any more.
    """

    epoch: int
    number: int
    made: CollatedBatch | None
    columns: Columns
    error: Exception | None = None
    careful: bool = False
    stale: bool = False


class DaliFeed:
    """Makes the inputs of batches.

    Args:
        plan: what to load.
        store: the cached pictures, or None.
        blocked: bool or uint8 (N,), samples known to be bad, which are left out; read at each batch.
        resized: whether pictures go in decoded and resized.
        reader: brings the encoded images, and their order; None reads the source in the plan's order.
        sizes: int32 (N, 3), where sizes are remembered, all zero at first; shared where several feeds are at work.
    """

    def __init__(
        self,
        plan: LoadPlan,
        cache: ImageCache | None,
        blocked: NDArray[Any],
        resized: bool,
        reader: DaliReader | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self._plan, self._blocked, self._resized, self._reader = plan, blocked, resized, reader
        self._order = plan.order() if reader is None else reader
        self._augments = plan.engine != "none"
        unaugmented = replace(plan, augmentation=plan.numbers, engine="none")
        self._assembler = BatchAssembler(unaugmented, cache, blocked, self._order)
        # of samples seen, where DALI decodes them
        self._sizes: Sizes = np.zeros((len(plan.source), 3), np.int32) if sizes is None else sizes

    def make(self, epoch: int, number: int, careful: bool, buffer: NDArray[np.uint8] | None = None) -> Fed:
        """Make the inputs of one batch; never raises, since an error belongs to its batch and not to this moment.

        Args:
            epoch, number: which one.
            careful: let `BatchAssembler` decode it.
            buffer: uint8, at least `plan.batch_bytes` long; pictures that are decoded here are written to its start.
        """
        try:
            if not (careful or self._resized):
                try:
                    return self._encoded(epoch, number)
                except (DataError, OSError):
                    careful = True
            return self._decoded(epoch, number, careful, buffer)
        except Exception as error:
            return self.failed(epoch, number, error, careful)

    def failed(self, epoch: int, number: int, error: Exception, careful: bool = False) -> Fed:
        """Return what takes the place of a batch that cannot be made, for DALI takes something each time."""
        return Fed(epoch, number, None, self._columns(epoch, *self._nothing(), None), error, careful)

    def _encoded(self, epoch: int, number: int) -> Fed:
        plan, clock = self._plan, StageClock(number)
        wanted = self._order.rows(epoch, number)
        good = self._blocked[wanted] == 0
        index = wanted[good]
        if not len(index):
            return self._decoded(epoch, number, True, None)
        width = plan.resize.width if plan.bucket_widths is None else int(plan.bucket_widths[index[0]])
        with clock.whole("read"):
            samples = self._samples(epoch, number, good, index)
        with clock.whole("decode"):  # of what DALI is not given, and of headers
            images, sizes = self._images(index, [sample.image for sample in samples], width)
        batch = Batch(
            images=None,
            widths=sizes[:, 2],
            targets=as_targets(sample.target for sample in samples),
            keys=[sample.key for sample in samples],
            index=index,
        )
        made = CollatedBatch(batch, [], len(wanted) - len(index), 0, 0)
        if has_polygons(batch.targets):
            pairs = ((sample.target, image_size(sample.image)) for sample in samples)
            batch.targets = [resize_target(target, plan.resize, size, made.regions) for target, size in pairs]
        if plan.pipeline is not None:
            refuse_polygons(batch.targets)
        with clock.whole("augment"):
            if plan.numbers is not None and has_polygons(batch.targets):
                table = plan.numbers.draw(plan.seed, epoch, index, plan.resize.height, width)
                batch.targets = move_targets(batch.targets, table, made.regions)
            columns = self._columns(epoch, files(images), sizes, width, index)
        made.stages = clock.seconds()
        return Fed(epoch, number, made, columns)

    def _samples(self, epoch: int, number: int, good: NDArray[np.bool_], index: Index) -> list[Sample]:
        source = self._plan.source
        if self._reader is None:
            with source.reading() as get:
                return [get(i) for i in index.tolist()]
        images = compress(self._reader.images(epoch, number), good)
        return [Sample(source.key(i), image, source.target(i)) for i, image in zip(index.tolist(), images, strict=True)]

    def _images(self, index: Index, images: list[bytes], width: int) -> tuple[list[bytes], Sizes]:
        """Return what DALI is to decode, and the sizes of that; a header is read once, not in every epoch."""
        sizes = self._sizes[index]
        for row in np.flatnonzero((sizes == 0).any(axis=1)).tolist():  # any: another process may be writing it now
            given, (images[row], sizes[row]) = images[row], self._image(images[row], width)
            if images[row] is given:
                self._sizes[index[row]] = sizes[row]
        return images, sizes

    def _image(self, data: bytes, width: int) -> tuple[bytes, tuple[int, int, int]]:
        header, resize = read_header(data), self._plan.resize
        if resize.bucket_width(*header.upright_size) != width:
            raise DataError("this image belongs into another bucket")  # BatchAssembler finds the words
        if dali_decodes(data, header, resize):
            across, down = header.upright_size
            return data, (down, across, resize.valid_width(across, down))
        image, valid = resize.apply(decode(data, resize.channels))
        return netpbm(image[:, :valid]), (resize.height, valid, valid)

    def _decoded(self, epoch: int, number: int, careful: bool, buffer: NDArray[np.uint8] | None) -> Fed:
        """Make a batch as the other loaders do, all but its augmentation."""
        made = self._assembler.make(
            epoch, number, np.empty(self._plan.batch_bytes, np.uint8) if buffer is None else buffer
        )
        batch = made.batch
        if self._plan.pipeline is not None:
            refuse_polygons(batch.targets)
        if not len(batch):
            return Fed(epoch, number, made, self._columns(epoch, *self._nothing(), None), careful=careful)
        columns = self._columns(epoch, *self._pixels(batch.images, batch.widths), batch.index)
        return Fed(epoch, number, made, columns, careful=careful)

    def _pixels(self, images: NDArray[np.uint8], widths: NDArray[np.int32]) -> tuple[Any, Sizes, int]:
        sizes = np.stack([np.full_like(widths, images.shape[1]), widths, widths], axis=1)
        if self._resized:
            return images, sizes, images.shape[2]
        bitmaps = [netpbm(image[:, :width]) for image, width in zip(images, widths, strict=True)]
        return files(bitmaps), sizes, images.shape[2]

    def _nothing(self) -> tuple[Any, Sizes, int]:
        """Return one black picture: DALI takes no empty batch."""
        resize = self._plan.resize
        black = np.zeros((1, resize.height, resize.width, resize.channels), np.uint8)
        return self._pixels(black, np.array([resize.width], np.int32))

    def _columns(self, epoch: int, images: Any, sizes: Sizes, width: int, index: Index | None) -> Columns:
        plan = self._plan
        columns: Columns = {"images": images}
        if not self._resized:
            columns |= resize_columns(sizes, plan.resize, width)
        rows = np.zeros(1, np.int64) if index is None else index
        if plan.pipeline is not None:
            columns["states"] = row_states(plan.seed, epoch, rows)[:, None]
        elif plan.numbers is not None and self._augments:
            columns |= columns_of(
                plan.numbers.draw(plan.seed, epoch, rows, plan.resize.height, width), plan.resize.channels
            )
        return columns

    def columns_for(self, index: Index) -> Columns:
        """Return what the inputs of some samples would be if their pictures had the input's size; without these."""
        resize = self._plan.resize
        sizes = np.tile(np.array([resize.height, resize.width, resize.width], np.int32), (len(index), 1))
        return self._columns(0, np.empty(0, np.uint8), sizes, resize.width, index)

    def names(self) -> list[str]:
        """Return the names of the inputs, which are the same for every batch."""
        return list(self._columns(0, *self._nothing(), None))
