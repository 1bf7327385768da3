"""Processes that make whole batches in shared memory; see pool.py for how they live and die.

While training takes the last batches of an epoch, the first of the next one are being made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.heap import Arena
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill import shared_memory as shared
from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.inline import InlineLoader
from inkmill.data.loaders.plan import LoadPlan, positions
from inkmill.data.loaders.pool import Answer, Pool
from inkmill.data.loaders.rows import batch_bytes
from inkmill.data.loaders.worker_process import Task
from inkmill.data.pipeline.cache import ImageCache
from inkmill.machine import memory_left

if TYPE_CHECKING:
    from inkmill.data.loaders import AugmentOn

_ALIGNMENT = 64  # bytes: a cache line
_OF_MEMORY = 0.25  # that pictures of any size may take; resized ones take half
_NOTE = "pictures are resized on the CPU: for handing them over as they are decoded there is too little memory"


@dataclass(frozen=True, slots=True)
class _MakeBatches:
    """Writes a batch's pixels into the slot; keys, targets and counts go through the pipe."""

    plan: LoadPlan
    blocked: Arena
    cache: ImageCache | None
    fits: bool
    augment_on: AugmentOn

    @property
    def slot_bytes(self) -> int:
        return -(-batch_bytes(self.plan, self.fits) // _ALIGNMENT) * _ALIGNMENT

    def open(self) -> Callable[[Task, NDArray[np.uint8]], Any]:
        blocked = np.frombuffer(self.blocked.buffer, np.uint8)
        maker = BatchAssembler(self.plan, self.cache, blocked, fits=self.fits, augment_on=self.augment_on)

        def make(task: Task, memory: NDArray[np.uint8]) -> tuple[Any, ...]:
            epoch, number = task
            return maker.make(epoch, number, memory).pack()

        return make

    def release(self) -> None:
        self.plan.source.release()


class WorkerLoader(Loader):
    """Makes batches in `workers` processes, which start with the first batch that is asked for."""

    borrows = True
    hands_over_any_size = True

    def __init__(self, plan: LoadPlan, workers: int, augment_on: AugmentOn = "cpu") -> None:
        super().__init__(plan, augment_on)
        self.workers = workers
        self._blocked_arena = shared.allocate(len(plan.source))
        self._blocked_mask = np.frombuffer(self._blocked_arena.buffer, np.uint8)
        self._pool = self._new_pool()
        self._answers: Generator[Answer, None, None] | None = None
        self._ends_at: tuple[int, int, frozenset[str]] | None = (
            None  # the batch `_answers` goes on with, and bad samples known
        )

    def _new_pool(self) -> Pool:
        job = _MakeBatches(self.plan, self._blocked_arena, self._cache, self._fits, self.augment_on)
        return Pool(job, self.workers)

    def leave_ragged(self) -> bool:
        """See Loader; workers that have started go on as they are."""
        if self._fits and not self._pool.memory and super().leave_ragged():
            self._pool = self._new_pool()
        return not self._fits

    def _fit_where_memory_is_short(self) -> None:
        """Start workers that need half the memory, where there is not enough: other loaders may have taken it."""
        if self._fits or self._pool.memory:
            return
        left = memory_left()
        if self._pool.shortage() is not None or (left is not None and self._pool.size > _OF_MEMORY * left):
            self._fits = True
            self._pool = self._new_pool()
            if _NOTE not in self.stats.notes:
                self.stats.notes.append(_NOTE)

    @property
    def memory(self) -> list[NDArray[np.uint8]]:
        """Where the images of `views` lie, one array a worker; none before the first batch."""
        return self._pool.memory

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        self._fit_where_memory_is_short()
        shortage = self._pool.shortage()
        if shortage is not None and shortage not in self.stats.notes:
            self.stats.notes.append(shortage)
        known_bad = frozenset(self._blocked)
        if self._answers is None or self._ends_at != (epoch, first, known_bad):
            self._answers = self._pool.answers(positions(epoch, first, len(self), endless=self.plan.shuffle))
        self._ends_at = None
        for answer in islice(self._answers, len(self) - first):
            if answer.error is not None:
                raise answer.error
            yield CollatedBatch.unpack(answer.content, answer.memory)
        self._ends_at = (epoch + 1, 0, known_bad) if self.plan.shuffle else None

    def release(self) -> None:
        """See Loader.release; the workers live on."""
        self._answers = self._ends_at = None
        self._pool.release()
        self.plan.source.release()

    def close(self) -> None:
        """End the workers and give their memory back."""
        self._answers = None
        self._pool.close()
        super().close()


def open_loader(plan: LoadPlan, workers: int, augment_on: AugmentOn, device: Any) -> Loader:
    """Return the loader of worker processes, or with none of them the inline one; see LoaderInfo."""
    return WorkerLoader(plan, workers, augment_on) if workers else InlineLoader(plan, augment_on)
