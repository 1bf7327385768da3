"""One batch of whole pictures, or of the parts of them that a detector is trained on.

    training     a window of each kept picture (`LoadPlan.window`), warped here or on the GPU
    validation   the kept pictures themselves, those of one input size together, padded with black

A kept picture is one at the size at which the model reads (`PageResize`), as decoded and resized once; its size depends
on the picture, so pictures lie packed one behind the other, in the cache and on their way to a GPU. Regions are not
moved here: a batch has the matrix from pixels of the picture to those of the input, and whoever needs the regions there
moves them all at once, on the GPU in one product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch, SampleOrder, bad_sample
from inkmill.data.loaders.images import Pixels, RaggedImages
from inkmill.data.loaders.plan import LoadPlan, StageClock, measure_sizes, page_buckets
from inkmill.data.pipeline.cache import ImageCache
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.pages import PageResize, bucket_size, page_sizes
from inkmill.data.types import Batch, Sample, Target, as_targets
from inkmill.errors import DataError

if TYPE_CHECKING:
    from inkmill.data.augment.page_passes import Pages
    from inkmill.data.loaders import AugmentOn

_HEADER = 4  # int64 a picture, see RaggedImages: first byte, rows, columns, columns again


@dataclass(frozen=True, slots=True)
class PackedPages(RaggedImages):
    """Kept pictures of a batch, of any sizes, as `RaggedImages` has them; a GPU warps them to `shape`.

    Attributes:
        memory: uint8, NumPy's or a tensor: int64 (B, 4) of where each picture begins, its rows, its columns, and its
            columns again; then the pixels of one picture behind the other.
        shape: of the batch once it is warped.
    """

    def kept(self) -> PackedPages:
        """Return what a consumer may keep: a copy."""
        return PackedPages(self.memory.copy(), self.shape)

    def pages(self) -> Pages:
        """Return them as the passes on a device take them: tensors that share their memory."""
        import torch

        from inkmill.data.augment.page_passes import Pages

        memory: Any = self.memory
        tensor = torch.from_numpy(memory) if isinstance(memory, np.ndarray) else memory
        headers = tensor[: self.shape[0] * _HEADER * 8].view(torch.int64).reshape(-1, _HEADER)
        return Pages(tensor, headers, self.shape[3])

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator of a GPU who uses the memory."""
        self.memory.record_stream(stream)  # type: ignore[attr-defined]


def packed_bytes(plan: LoadPlan) -> int:
    """Return the bytes of the largest batch of packed pictures."""
    assert isinstance(plan.resize, PageResize)
    assert plan.sizes is not None
    sizes = page_sizes(plan.sizes, plan.resize).prod(axis=1) * plan.resize.channels
    largest = np.sort(sizes)[-plan.largest_batch :]
    return plan.largest_batch * _HEADER * 8 + int(largest.sum())


class PageAssembler:
    """Assembles any batch of a plan whose `resize` is a `PageResize`; see BatchAssembler.

    Args:
        plan: what to load; `sizes` are known.
        cache: the cached pictures, or None.
        blocked: bool or uint8 (N,), samples known to be bad, which are left out; read at each batch.
        order: which samples make each batch; the plan's where None.
        packed: batches hold `PackedPages`, which the training device warps; for plans with a window.
    """

    def __init__(
        self,
        plan: LoadPlan,
        cache: ImageCache | None,
        blocked: NDArray[Any],
        order: SampleOrder | None = None,
        packed: bool = False,
    ) -> None:
        assert isinstance(plan.resize, PageResize)
        assert plan.sizes is not None
        self._plan, self._resize, self._cache, self._blocked, self._packed = plan, plan.resize, cache, blocked, packed
        self._sizes = np.asarray(plan.sizes, np.int32)
        self._order = plan.order() if order is None else order
        self._pages = page_sizes(self._sizes, self._resize)

    def make(self, epoch: int, number: int, buffer: Pixels) -> CollatedBatch:
        """Assemble one batch; see BatchAssembler.make."""
        clock = StageClock(number)
        wanted = self._order.samples(epoch, number)
        index = wanted[self._blocked[wanted] == 0]
        # 1. The kept pictures, from the cache or from their files. Bad ones are left out.
        batch = _Loaded(buffer if self._packed else None, len(index))
        with clock.samples(len(index)) as clocks, self._plan.source.reading() as get:
            for sample, clocked in zip(index.tolist(), clocks, strict=True):
                try:
                    self._load(sample, get, batch, clocked)
                except (DataError, OSError) as error:
                    batch.skipped.append(self._bad(sample, error))
        # 2. What the model sees of them.
        with clock.whole("augment"):
            assembled = self._batch(epoch, index, batch, buffer)
        left_out = len(wanted) - len(assembled)
        counts = (left_out, batch.cached, batch.damaged)
        return CollatedBatch(assembled, batch.skipped, *counts, stages=clock.seconds())

    def _load(self, index: int, get: Callable[[int], Sample], batch: _Loaded, clock: StageClock | None) -> None:
        """Load one picture, or raise DataError or OSError."""
        rows, columns = self._pages[index].tolist()
        shape = rows, columns, self._resize.channels
        if clock is not None:
            clock.start()
        # 1. It may be cached; the disk tier may have damaged it.
        if self._cache is not None:
            cached, damaged = self._cache.page(index)
            batch.damaged += damaged
            if cached is not None:
                source = self._plan.source
                batch.add(index, source.key(index), source.target(index), cached.reshape(shape))
                batch.cached += 1
                if clock is not None:
                    clock.lap("cache")
                return
        # 2. Else it is read, decoded and resized, and cached for the next time.
        sample = get(index)
        if clock is not None:
            clock.lap("read")
        image = decode(sample.image, self._resize.channels)
        if clock is not None:
            clock.lap("decode")
        if (image.shape[1], image.shape[0]) != tuple(self._sizes[index].tolist()):
            width, height = self._sizes[index].tolist()
            raise DataError(
                f"the image is {image.shape[1]}x{image.shape[0]} pixels, and its header said {width}x{height}"
            )
        page = self._resize.shrunk(image)
        if clock is not None:
            clock.lap("resize")
        if self._cache is not None:
            self._cache.keep_page(index, page)
        batch.add(index, sample.key, sample.target, page)
        if clock is not None:
            clock.lap("cache")

    def _bad(self, index: int, error: Exception) -> tuple[int, str, str]:
        return bad_sample(self._plan, index, error)

    def _batch(self, epoch: int, wanted: NDArray[np.int64], loaded: _Loaded, buffer: Pixels) -> Batch:
        """Return the batch of what was loaded, its images in the buffer."""
        plan, index = self._plan, np.array(loaded.index, np.int64)
        pages, sizes = self._pages[index], self._sizes[index]
        resized = resize_matrices(pages, sizes)
        height, width = self._input_size(wanted)
        shape = (len(index), height, width, self._resize.channels)
        batch = Batch(
            None, np.minimum(pages[:, 1], width).astype(np.int32), as_targets(loaded.targets), loaded.keys, index,
            sizes=sizes, matrix=resized.astype(np.float32),
        )  # fmt: skip
        # 1. Where parts of the pictures are to be seen, which parts.
        if plan.window is not None:
            batch.window = windows_of(plan, epoch, batch, pages)
            batch.widths = np.full(len(index), width, np.int32)
        # 2. A GPU warps packed pictures by itself.
        if self._packed:
            batch.images = PackedPages(buffer[: loaded.used], shape)
            return batch
        images = batch.images = buffer[: prod(shape)].reshape(shape)
        # 3. Whole pictures are padded.
        if plan.window is None:
            for image, page in zip(images, loaded.pages, strict=True):
                rows, columns = page.shape[:2]
                image[:rows, :columns], image[rows:], image[:rows, columns:] = page, 0, 0
            return batch
        # 4. Parts are warped here, and augmented.
        self._warp(epoch, batch, loaded.pages, resized)
        return batch

    def _warp(self, epoch: int, batch: Batch, pages: list[Pixels], resized: NDArray[np.float64]) -> None:
        from inkmill.data.augment.cpu import apply_cv
        from inkmill.data.augment.page_warp import places_a_side, to_input, warp_page

        plan, images = self._plan, batch.images
        assert plan.numbers is not None
        height, width = images.shape[1:3]
        params = plan.numbers.sample(plan.seed, epoch, batch.index, height, width, batch.window)
        space = params.space
        assert space is not None
        rows = zip(pages, space, places_a_side(space, height, width).tolist(), images, strict=True)
        for page, matrix, places, out in rows:
            warp_page(page, matrix, places, out)
        if len(batch):
            images[...] = apply_cv(images, params, warped=True)
        batch.matrix, batch.window = to_input(space, resized), None

    def _input_size(self, index: NDArray[np.int64]) -> tuple[int, int]:
        """Return height and width of a batch's images."""
        plan = self._plan
        if plan.window is not None:
            return plan.window
        if plan.bucket_widths is not None and len(index):
            return bucket_size(int(plan.bucket_widths[index[0]]))
        return self._resize.height, self._resize.width


class _Loaded:
    """The pictures of a batch as they are loaded, one after the other.

    Args:
        memory: where they are packed; None: they stay where they are.
        count: how many there will be at most.
    """

    def __init__(self, memory: Pixels | None, count: int) -> None:
        self.index: list[int] = []
        self.keys: list[str] = []
        self.targets: list[Target] = []
        self.pages: list[Pixels] = []
        self.skipped: list[tuple[int, str, str]] = []
        self.cached = self.damaged = 0
        self.used = count * _HEADER * 8
        self._memory = memory
        self._headers = None if memory is None else memory[: self.used].view(np.int64).reshape(-1, _HEADER)

    def add(self, index: int, key: str, target: Target, page: Pixels) -> None:
        """Add one picture, uint8 (rows, columns, C)."""
        if self._memory is None or self._headers is None:
            self.pages.append(page)
        else:
            begin, self.used = self.used, self.used + page.size
            self._memory[begin : self.used].reshape(page.shape)[...] = page
            self._headers[len(self.index)] = begin, page.shape[0], page.shape[1], page.shape[1]
        self.index.append(index)
        self.keys.append(key)
        self.targets.append(target)


def windows_of(plan: LoadPlan, epoch: int, batch: Batch, pages: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the parts that are drawn of a batch's pictures: (4, B), see `draw_windows`.

    Args:
        plan: with a window.
        epoch: of the run.
        batch: with its targets, index and sizes.
        pages: int64 (B, 2), rows and columns of the kept pictures.
    """
    from inkmill.data.augment.windows import boxes_of, draw_windows, text_boxes

    assert plan.numbers is not None
    assert plan.window is not None
    assert batch.sizes is not None
    texts = text_boxes([boxes_of(target) for target in batch.targets], pages[:, ::-1] / batch.sizes)
    return draw_windows(plan.numbers, plan.seed, epoch, batch.index, pages, plan.window, texts)


def resize_matrices(pages: NDArray[np.int64], sizes: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return (B, 3, 3), from pixels of pictures to those of the kept ones; see PageResize.matrix.

    Args:
        pages: int64 (B, 2), rows and columns that are kept.
        sizes: int32 (B, 2), width and height of the pictures.
    """
    scale = pages[:, ::-1] / sizes
    matrices = np.tile(np.eye(3), (len(pages), 1, 1))
    matrices[:, [0, 1], [0, 1]] = scale
    matrices[:, :2, 2] = (scale - 1) / 2
    return matrices


def with_sizes(plan: LoadPlan) -> LoadPlan:
    """Return a plan of whole pictures with what it lacks: their sizes, and for whole ones which share a batch."""
    resize, sizes = plan.resize, plan.sizes
    assert isinstance(resize, PageResize)
    if sizes is None:
        sizes = measure_sizes(plan.source)
    whole = plan.window is None and plan.bucket_widths is None
    return replace(plan, sizes=sizes, bucket_widths=page_buckets(sizes, resize) if whole else plan.bucket_widths)


def open_assembler(
    plan: LoadPlan, cache: ImageCache | None, blocked: NDArray[Any], ragged: bool, augment_on: AugmentOn
) -> BatchAssembler | PageAssembler:
    """Return who assembles the batches of a plan."""
    if isinstance(plan.resize, PageResize):
        return PageAssembler(plan, cache, blocked, None, ragged)
    return BatchAssembler(plan, cache, blocked, None, ragged, augment_on)
