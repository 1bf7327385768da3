"""Whole pictures in the training device's memory, packed one behind the other: no padding, each at its own size.

The first epoch is loaded once by another loader, decoded and resized. After that a batch is one warp from where the
pictures lie: a part of each, drawn by the augmentation, in training; the padded whole in validation. A thousand scenes
of 1,280 x 720 are 2.8 GB.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.images import HostMemory
from inkmill.data.loaders.pages import PackedPages, resize_matrices
from inkmill.data.loaders.plan import LoadPlan, StageClock
from inkmill.data.loaders.workers import InlineLoader, WorkerLoader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.pages import PageResize, bucket_size, page_bytes, page_sizes
from inkmill.data.types import Batch, as_targets
from inkmill.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from inkmill.data.augment.page_passes import PageAugmenter, Pages
    from inkmill.data.augment.windows import Floats

_FILL_BATCH = 16


class ResidentPages(Loader):
    """Keeps all pictures of a plan on `device`; batches have their images there, augmented.

    Args:
        plan: what to load; its `resize` is a `PageResize`, and sizes are known.
        device: a torch device or its name.
        workers: processes of the first pass; 0 loads in the calling thread.

    Raises:
        ConfigError: the pictures do not fit into the device's free memory.
    """

    def __init__(self, plan: LoadPlan, device: torch.device | str, workers: int = 0) -> None:
        import torch

        super().__init__(replace(plan, cache=CacheConfig()), "gpu")
        assert isinstance(plan.resize, PageResize)
        assert plan.sizes is not None
        self.memory = None
        self.device = torch.device(device)
        self._fill_plan = replace(
            plan,
            augmentation=None,
            window=None,
            bucket_widths=np.zeros(len(plan.source), np.int64),  # packed as they are, any sizes share a batch
            shuffle=False,
            rank=0,
            world_size=1,
            batch_size=min(_FILL_BATCH, len(plan.source)),
        )
        self._fill_workers = workers
        if self.device.type == "cuda":
            from inkmill.data.loaders.device import GpuIdle

            self.gpu_idle = GpuIdle(self.device)
        self._sizes = np.asarray(plan.sizes, np.int32)
        self._kept = page_sizes(self._sizes, plan.resize)
        self._resized = resize_matrices(self._kept, self._sizes)
        self._check_room()
        self._pages: Pages | None = None
        self._augmenter: PageAugmenter | None = None
        self._keys: NDArray[np.object_] = np.empty(len(plan.source), object)
        self._targets: NDArray[np.object_] = np.empty(len(plan.source), object)
        self._boxes: list[NDArray[np.float32]] = []

    def _check_room(self) -> None:
        import torch

        needed = page_bytes(self.plan.resize, self._sizes)
        assert needed is not None
        total = int(needed.sum())
        if self.device.type == "cuda" and total > (free := torch.cuda.mem_get_info(self.device)[0]):
            raise ConfigError(
                f"{len(self._sizes):,} pictures need {total / 2**30:.1f} GiB and {self.device} has {free / 2**30:.1f}"
                " free: use cache=ram"
            )

    @property
    def _defers_augmentation(self) -> bool:
        return False

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        if self._pages is None:
            self._fill()
        blocked = self._blocked_mask.copy()
        for number, wanted in enumerate(self._order.batches(epoch, first), first):
            clock = StageClock(number)
            index = wanted[blocked[wanted] == 0]
            with clock.whole("augment"):
                batch = self._batch(epoch, index)
            collated = CollatedBatch(batch, [], len(wanted) - len(index), len(index), 0)
            collated.stages = clock.seconds()
            yield collated

    def _batch(self, epoch: int, index: NDArray[np.int64]) -> Batch:
        plan, pages = self.plan, self._pages
        assert pages is not None
        if self.gpu_idle is not None:
            self.gpu_idle.mark_generating()
        resized = self._resized[index].astype(np.float32)
        batch = Batch(
            None,
            self._kept[index, 1].astype(np.int32),
            as_targets(self._targets[index].tolist()),
            self._keys[index].tolist(),
            index,
            sizes=self._sizes[index],
            matrix=resized,
        )
        if self._augmenter is not None:
            window = self._windows(epoch, index)
            batch.images, batch.matrix = self._augmenter(plan.seed, epoch, index, pages, index, window, resized)
            batch.widths = np.full(len(index), batch.images.shape[2], np.int32)
        else:
            batch.images = self._whole(index)
        return batch

    def _windows(self, epoch: int, index: NDArray[np.int64]) -> Floats:
        from inkmill.data.augment.windows import draw_windows, text_boxes

        plan = self.plan
        assert plan.numbers is not None
        assert plan.window is not None
        texts = text_boxes([self._boxes[k] for k in index.tolist()], self._kept[index, ::-1] / self._sizes[index])
        return draw_windows(plan.numbers, plan.seed, epoch, index, self._kept[index], plan.window, texts)

    def _whole(self, index: NDArray[np.int64]) -> torch.Tensor:
        """Return whole pictures of one input size, padded with black."""
        import torch

        from inkmill.data.augment.page_passes import warp_pages

        pages, plan = self._pages, self.plan
        assert pages is not None
        assert plan.bucket_widths is not None
        size = bucket_size(int(plan.bucket_widths[index[0]])) if len(index) else (0, 0)
        still = torch.eye(3, device=self.device).reshape(1, 9).expand(len(index), 9).contiguous()
        once = torch.ones(len(index), dtype=torch.int32, device=self.device)
        return warp_pages(pages, torch.from_numpy(index).to(self.device), still, once, 0, size).to(torch.uint8)

    def _fill(self) -> None:
        """Load every picture once."""
        import torch

        from inkmill.data.augment.page_passes import PageAugmenter, Pages
        from inkmill.data.augment.windows import boxes_of

        plan = self.plan
        kept = page_bytes(plan.resize, self._sizes)
        assert kept is not None
        starts = np.cumsum(kept) - kept
        headers = np.stack([starts, self._kept[:, 0], self._kept[:, 1], self._kept[:, 1]], axis=1)
        memory = torch.zeros(int(kept.sum()), dtype=torch.uint8, device=self.device)
        with self._packed_loader() as loader:
            for batch in loader.views():
                assert isinstance(batch.images, PackedPages)
                packed = batch.images.pages()
                for row, number in enumerate(batch.index.tolist()):
                    begin, to, count = int(packed.headers[row, 0]), int(starts[number]), int(kept[number])
                    memory[to : to + count] = packed.memory[begin : begin + count].to(self.device)
                    self._targets[number], self._keys[number] = batch.targets[row], batch.keys[row]
            self.stats.skipped = loader.stats.skipped
            self.stats.notes.extend(loader.stats.notes)
            self._blocked.update(loader.state_dict()["blocked"])
        self._blocked_mask[list(self._blocked.values())] = 1
        self._boxes = [boxes_of(target) for target in self._targets]
        self._pages = Pages(memory, torch.from_numpy(headers).to(self.device), plan.resize.channels)
        if plan.window is not None and plan.numbers is not None:
            self._augmenter = PageAugmenter(plan.numbers, plan.largest_batch, plan.window, self.device)

    def _packed_loader(self) -> Loader:
        """Return a loader whose batches are packed pictures."""
        plan, workers = self._fill_plan, self._fill_workers
        loader = WorkerLoader(plan, workers) if workers else InlineLoader(plan)
        loader.memory = HostMemory(plan, reused=bool(workers), may_be_ragged=True, ragged=True)
        return loader

    def close(self) -> None:
        """Give the device's memory back; iterating again loads it again."""
        self._pages = self._augmenter = None
        super().close()
