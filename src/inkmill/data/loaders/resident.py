"""All pictures in the training device's memory: the tier above RAM, for sets that fit there.

The first epoch is loaded once by another loader, fitted and unaugmented, straight into one uint8 tensor (a million
32x128x3 crops are 12 GB). After that a batch is one gather on the device, and the only work for the CPU is to draw the
augmentation's numbers, which threads do many batches at a time: NumPy then spends its time in long loops outside the
interpreter's lock. Order, numbers and counts are those of every other loader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.keep import Keep
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.maker import Made
from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.sample import Batch
from inkmill.data.targets import move_targets
from inkmill.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch

_ROWS_AT_ONCE = 1 << 14  # a draw of so many rows keeps a thread in NumPy for about 20 ms
_THREADS = 4  # more of them wait for the interpreter's lock
_FILL_BATCH = 1024

Group = tuple[list[NDArray[np.int64]], list[int], Any, float]
"""Of some batches: the sample indices, how many known bad ones were left out of each, the table of all or None, and the
seconds that drawing it took for each."""


class ResidentLoader(Loader):
    """Keeps all pictures on `device`; batches have their images there, and the drawn numbers in `extra["table"]`.

    Args:
        plan: what to load. Its `keep` says where the first pass finds and leaves the pictures; `engine` counts as
            "none", for the augmentation is left to the device.
        device: a torch device or its name.
        workers: processes of the first pass; 0 loads in the calling thread.

    Raises:
        MissingExtraError: torch is not installed.
        ConfigError: the pictures have several widths, or do not fit into the device's free memory; the augmentation is
            an Albumentations pipeline.
    """

    on_device = True
    makers = _THREADS

    def __init__(self, plan: LoadPlan, device: torch.device | str, workers: int = 0) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "train", "keeping pictures on the device") from None
        if plan.bucket_widths is not None or plan.fit.mode == "height":
            raise ConfigError(
                "pictures of several widths are not kept on a device: use input_fit=pad, or keep them in RAM"
            )
        super().__init__(replace(plan, keep=Keep(), engine="none"))
        self._fill_plan = replace(
            plan,
            augmentation=None,
            shuffle=False,
            rank=0,
            world_size=1,
            batch_size=min(_FILL_BATCH, len(plan.source)),
        )
        self.device, self._workers = torch.device(device), workers
        self._check_room()
        self._images: torch.Tensor | None = None
        self._widths = np.zeros(len(plan.source), np.int32)
        self._keys: NDArray[Any] = np.empty(len(plan.source), object)
        self._targets: NDArray[Any] = np.empty(len(plan.source), object)
        self._pool: ThreadPoolExecutor | None = None

    def _check_room(self) -> None:
        """Refuse before loading what would not fit at its end."""
        import torch

        fit = self.plan.fit
        needed = len(self.plan.source) * fit.height * fit.width * fit.channels
        if self.device.type == "cuda" and needed > (free := torch.cuda.mem_get_info(self.device)[0]):
            raise ConfigError(
                f"{len(self.plan.source):,} pictures need {needed / 2**30:.1f} GiB and {self.device} has"
                f" {free / 2**30:.1f} free: keep them in RAM"
            )

    def _produce(self, epoch: int, first: int) -> Generator[Made, None, None]:
        if self._images is None:
            self._fill()
        blocked = self._blocked_mask.copy()
        for rows, left_out, table, seconds in self._ahead(epoch, first, blocked):
            start = 0
            for index, missing in zip(rows, left_out, strict=True):
                part = None if table is None else replace(table, values=table.values[start : start + len(index)])
                start += len(index)
                made = self._made(index, missing, part)
                made.stages["augment"] = seconds
                yield made

    def _made(self, index: NDArray[np.int64], left_out: int, table: Any) -> Made:
        import torch

        assert self._images is not None
        where = torch.from_numpy(index)
        if self.device.type == "cuda":
            where = where.pin_memory().to(self.device, non_blocking=True)
        batch = Batch(
            images=self._images.index_select(0, where),
            widths=self._widths[index],
            targets=self._targets[index].tolist(),
            keys=self._keys[index].tolist(),
            index=index,
            extra={} if table is None else {"table": table},
        )
        made = Made(batch, [], left_out, len(index), 0)
        if table is not None:
            batch.targets = move_targets(batch.targets, table, made.regions)
        return made

    def _ahead(self, epoch: int, first: int, blocked: NDArray[Any]) -> Iterator[Group]:
        """Yield the batches from `first` on in groups, whose tables threads have drawn meanwhile."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="inkmill-draw")
        group = max(1, _ROWS_AT_ONCE // self.plan.batch_size)
        starts = deque(range(first, len(self), group))
        pending: deque[Future[Group]] = deque()
        pool = self._pool

        def draw_next() -> None:
            if starts:
                start = starts.popleft()
                numbers = range(start, min(start + group, len(self)))
                pending.append(pool.submit(self._draw, epoch, numbers, blocked))

        try:
            for _ in range(2 * _THREADS):
                draw_next()
            while pending:
                group_drawn = pending.popleft().result()
                draw_next()
                yield group_drawn
        finally:
            for future in pending:
                future.cancel()

    def _draw(self, epoch: int, numbers: range, blocked: NDArray[Any]) -> Group:
        plan, began = self.plan, perf_counter()
        wanted = [self._order.rows(epoch, number) for number in numbers]
        rows = [index[blocked[index] == 0] for index in wanted]
        left_out = [len(all_rows) - len(good) for all_rows, good in zip(wanted, rows, strict=True)]
        if plan.numbers is None:
            return rows, left_out, None, 0.0
        table = plan.numbers.draw(plan.seed, epoch, np.concatenate(rows), plan.fit.height, plan.fit.width)
        return rows, left_out, table, (perf_counter() - began) / len(rows)

    def _fill(self) -> None:
        """Load every sample once."""
        import torch

        from inkmill.data.loaders import make_loader

        fit = self.plan.fit
        shape = (len(self.plan.source), fit.height, fit.width, fit.channels)
        images = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        with make_loader(self._fill_plan, self._workers) as loader:
            for batch in loader.views():
                where = torch.from_numpy(batch.index).to(self.device)
                images[where] = torch.from_numpy(batch.images).to(self.device)
                self._widths[batch.index] = batch.widths
                self._keys[batch.index] = batch.keys
                self._targets[batch.index] = batch.targets
            self.stats.skipped = loader.stats.skipped
            self.stats.regions.update(loader.stats.regions)
            self.stats.notes.extend(loader.stats.notes)
            self._blocked.update(loader.state_dict()["blocked"])
        self._blocked_mask[list(self._blocked.values())] = 1
        self._images = images

    def close(self) -> None:
        """Give the device's memory and the threads back; iterating again loads anew."""
        self._images = None
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        super().close()
