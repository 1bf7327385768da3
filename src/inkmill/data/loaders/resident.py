"""All pictures in the training device's memory: the tier above RAM, for sets that fit there.

The first epoch is loaded once by another loader, resized and unaugmented, straight into one uint8 tensor (a million
32x128x3 crops are 12 GB). After that a batch is one pass on the device, which fetches its pictures, draws the
augmentation's numbers and applies them; the CPU says which pictures. Order, numbers and counts are those of every other
loader.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.plan import LoadPlan, StageClock
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.targets import has_polygons, move_targets
from inkmill.data.types import Batch, Target, Text, Texts, as_targets
from inkmill.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch

    from inkmill.data.augment.gpu import DeviceAugmenter
    from inkmill.data.loaders import AugmentOn

_FILL_BATCH = 1024


class ResidentLoader(Loader):
    """Keeps all pictures on `device`; batches have their images there, augmented.

    Args:
        plan: what to load. Its `cache` says where the first pass finds and leaves the pictures. The device augments, in
            a pass that is compiled at the first batch if it is a GPU.
        device: a torch device or its name.
        workers: processes of the first pass; 0 loads in the calling thread.

    Raises:
        MissingExtraError: torch is not installed.
        ConfigError: the pictures have several widths, or do not fit into the device's free memory; the augmentation is
            an Albumentations pipeline.
    """

    def __init__(self, plan: LoadPlan, device: torch.device | str, workers: int = 0) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "train", "keeping pictures on the device") from None
        if plan.bucket_widths is not None or plan.resize.buckets:
            raise ConfigError(
                "pictures of several sizes are not cached on a device: use input_resize=pad, or cache=ram"
            )
        super().__init__(replace(plan, cache=CacheConfig()), "gpu")
        self.memory = None
        self._fill_plan = replace(
            plan,
            augmentation=None,
            shuffle=False,
            rank=0,
            world_size=1,
            batch_size=min(_FILL_BATCH, len(plan.source)),
        )
        self.device = torch.device(device)
        self._fill_workers = workers
        if self.device.type == "cuda":
            from inkmill.data.loaders.device import GpuIdle

            self.gpu_idle = GpuIdle(self.device)
        self._check_room()
        self._images: torch.Tensor | None = None
        self._augmenter: DeviceAugmenter | None = None
        self._widths = np.zeros(len(plan.source), np.int32)
        self._keys: NDArray[Any] = np.empty(len(plan.source), object)
        self._targets: NDArray[Any] = np.empty(len(plan.source), object)  # strings where all are text
        self._all_text = self._polygons = False

    def _check_room(self) -> None:
        """Refuse before loading what would not fit at its end."""
        import torch

        resize = self.plan.resize
        needed = len(self.plan.source) * resize.height * resize.width * resize.channels
        if self.device.type == "cuda" and needed > (free := torch.cuda.mem_get_info(self.device)[0]):
            raise ConfigError(
                f"{len(self.plan.source):,} pictures need {needed / 2**30:.1f} GiB and {self.device} has"
                f" {free / 2**30:.1f} free: use cache=ram"
            )

    @property
    def _defers_augmentation(self) -> bool:
        return False  # batches are augmented as they are gathered

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        if self._images is None:
            self._fill()
        blocked = self._blocked_mask.copy()
        for number, wanted in enumerate(self._order.batches(epoch, first), first):
            clock = StageClock(number)
            index = wanted[blocked[wanted] == 0]
            collated = self._collated(epoch, index, len(wanted) - len(index), clock)
            collated.stages = clock.seconds()
            yield collated

    def _collated(self, epoch: int, index: NDArray[np.int64], left_out: int, clock: StageClock) -> CollatedBatch:
        with clock.whole("augment"):
            images = self._images_of(epoch, index)
        batch = Batch(images, self._widths[index], self._targets_of(index), self._keys[index].tolist(), index)
        collated = CollatedBatch(batch, [], left_out, len(index), 0)
        if self._polygons and self.plan.numbers is not None:
            with clock.whole("augment"):
                plan = self.plan
                params = self.plan.numbers.sample(plan.seed, epoch, index, plan.resize.height, plan.resize.width)
                batch.targets = move_targets(batch.targets, params, collated.regions)
        return collated

    def _images_of(self, epoch: int, index: NDArray[np.int64]) -> torch.Tensor:
        import torch

        if self.gpu_idle is not None:
            self.gpu_idle.mark_generating()
        if self._augmenter is not None:
            return self._augmenter(self.plan.seed, epoch, index)
        assert self._images is not None
        where = torch.from_numpy(index)
        if self.device.type == "cuda":
            where = where.pin_memory().to(self.device, non_blocking=True)
        return self._images.index_select(0, where)

    def _targets_of(self, index: NDArray[np.int64]) -> Sequence[Target]:
        targets = self._targets[index].tolist()
        return Texts(targets) if self._all_text else as_targets(targets)

    def _fill(self) -> None:
        """Load every sample once."""
        import torch

        from inkmill.data.augment.gpu import DeviceAugmenter
        from inkmill.data.loaders import make_loader

        plan, resize = self.plan, self.plan.resize
        shape = (len(plan.source), resize.height, resize.width, resize.channels)
        images = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self._all_text = True
        with make_loader(self._fill_plan, self._fill_workers) as loader:
            for batch in loader.views():
                where = torch.from_numpy(batch.index).to(self.device)
                images[where] = torch.from_numpy(batch.images).to(self.device)
                self._widths[batch.index] = batch.widths
                self._keys[batch.index] = batch.keys
                self._store_targets(batch)
            self.stats.skipped = loader.stats.skipped
            self.stats.regions.update(loader.stats.regions)
            self.stats.notes.extend(loader.stats.notes)
            self._blocked.update(loader.state_dict()["blocked"])
        self._blocked_mask[list(self._blocked.values())] = 1
        self._polygons = not self._all_text and has_polygons(self._targets)  # type: ignore[arg-type]
        if plan.numbers is not None:
            self._augmenter = DeviceAugmenter(plan.numbers, plan.largest_batch, self.device, held=images)
        self._images = images

    def _store_targets(self, batch: Batch) -> None:
        texts = batch.targets.values if isinstance(batch.targets, Texts) else None
        if self._all_text and texts is None and len(batch):
            self._all_text = False
            self._targets[:] = [Text(one) if isinstance(one, str) else one for one in self._targets]
        self._targets[batch.index] = texts if texts is not None and self._all_text else list(batch.targets)

    def close(self) -> None:
        """Give the device's memory back; iterating again loads it again."""
        if self._augmenter is not None:
            self._augmenter.close()
        self._images = self._augmenter = None
        super().close()


def open_loader(plan: LoadPlan, workers: int, augment_on: AugmentOn, device: torch.device | str) -> Loader:
    """Return a loader that keeps all pictures on a GPU; see LoaderInfo.

    Raises:
        ConfigError: `device` is no GPU, or see ResidentLoader.
    """
    if not str(device).startswith("cuda"):
        raise ConfigError("dataset.cache=gpu, and there is no GPU here; use dataset.cache=ram")
    if plan.resize.mode == "page":
        from inkmill.data.loaders.resident_pages import ResidentPages

        return ResidentPages(plan, device, workers)
    return ResidentLoader(plan, device, workers)
