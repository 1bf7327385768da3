"""Batches assembled in the calling thread, or in worker processes; see pool.py for how those live and die.

While training takes the last batches of an epoch, the first of the next one are assembled.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.heap import Arena
from typing import TYPE_CHECKING, Any

import numpy as np

from inkmill import shared_memory as shared
from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.images import HostMemory, Pixels
from inkmill.data.loaders.pages import open_assembler
from inkmill.data.loaders.plan import LoadPlan, positions
from inkmill.data.loaders.pool import Answer, Pool, Task
from inkmill.data.pipeline.cache import ImageCache
from inkmill.machine import memory_left

if TYPE_CHECKING:
    from inkmill.data.loaders import AugmentOn

_ALIGNMENT = 64  # bytes: a cache line
_OF_MEMORY = 0.25  # of the free memory that ragged batches may take; resized ones take half
_NOTE = "images are resized on the CPU: there is too little memory for uploading them as they are decoded"


def open_loader(plan: LoadPlan, workers: int, augment_on: AugmentOn, device: Any) -> Loader:
    """Return the loader of worker processes, or with none of them the inline one; see LoaderInfo."""
    return WorkerLoader(plan, workers, augment_on) if workers else InlineLoader(plan, augment_on)


def _may_be_ragged(plan: LoadPlan, augment_on: AugmentOn) -> bool:
    """Return whether nothing needs resized images before the GPU: they are neither cached nor augmented here."""
    if plan.resize.mode == "page":  # packed, in any case: what is left to do is a warp
        return plan.window is not None and augment_on == "gpu"
    augmented_here = plan.pipeline is not None or (plan.numbers is not None and augment_on != "gpu")
    return plan.cache.tier == "none" and not augmented_here


class InlineLoader(Loader):
    """Assembles each batch in the caller's own thread when it is asked for. The reference for all other loaders."""

    def __init__(self, plan: LoadPlan, augment_on: AugmentOn = "cpu") -> None:
        super().__init__(plan, augment_on)
        self.memory: HostMemory = HostMemory(plan, may_be_ragged=_may_be_ragged(plan, augment_on))

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        ragged = self.memory.ragged
        assembler = open_assembler(self.plan, self._cache, self._blocked_mask, ragged, self.augment_on)
        for number in range(first, len(self)):
            yield assembler.make(epoch, number, np.empty(self.memory.batch_bytes, np.uint8))


class WorkerLoader(Loader):
    """Assembles batches in `workers` processes, which start with the first batch that is asked for."""

    def __init__(self, plan: LoadPlan, workers: int, augment_on: AugmentOn = "cpu") -> None:
        super().__init__(plan, augment_on)
        self.workers = workers
        self.memory: HostMemory = HostMemory(plan, reused=True, may_be_ragged=_may_be_ragged(plan, augment_on))
        self._blocked_arena = shared.allocate(len(plan.source))
        self._blocked_mask = np.frombuffer(self._blocked_arena.buffer, np.uint8)
        self._pool: Pool | None = None
        self._answers: Generator[Answer, None, None] | None = None
        # The batch that `_answers` continues with, and the bad samples it was assembled without; None: throw them away.
        self._ends_at: tuple[int, int, frozenset[str]] | None = None

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        # 1. Processes, with memory for the batches they prefetch.
        pool = self._pool = self._pool or self._new_pool()
        # 2. What is prefetched is used where it is what comes next, and knew the same bad samples.
        known_bad = frozenset(self._blocked)
        if self._answers is None or self._ends_at != (epoch, first, known_bad):
            self._answers = pool.answers(positions(epoch, first, len(self), endless=self.plan.shuffle))
        self._ends_at = None
        # 3. Take the answers of this epoch; what comes after them is prefetched meanwhile.
        for answer in islice(self._answers, len(self) - first):
            if answer.error is not None:
                raise answer.error
            yield CollatedBatch.unpack(answer.content, answer.memory)
        # 4. Validation, which is not shuffled, ends with its epoch.
        self._ends_at = (epoch + 1, 0, known_bad) if self.plan.shuffle else None

    def _new_pool(self) -> Pool:
        """Return processes that have not started, for resized batches where memory is short: others may have taken it.

        Ragged batches need twice the memory.
        """
        pool = self._pool_for_batches()
        left = memory_left()
        if self.memory.ragged and (pool.shortage() is not None or (left is not None and pool.size > _OF_MEMORY * left)):
            self.memory.ragged = False
            self._note(_NOTE)
            pool = self._pool_for_batches()
        if (shortage := pool.shortage()) is not None:
            self._note(shortage)
        return pool

    def _pool_for_batches(self) -> Pool:
        slot_bytes = -(-self.memory.batch_bytes // _ALIGNMENT) * _ALIGNMENT
        ragged = self.memory.ragged
        job = _AssembleJob(self.plan, self._blocked_arena, self._cache, ragged, self.augment_on, slot_bytes)
        return Pool(job, self.workers, self.memory.blocks)

    def _note(self, sentence: str) -> None:
        if sentence not in self.stats.notes:
            self.stats.notes.append(sentence)

    def release(self) -> None:
        """See Loader.release; the workers live on."""
        self._answers = self._ends_at = None
        if self._pool is not None:
            self._pool.release()
        self.plan.source.release()

    def close(self) -> None:
        """End the workers and give their memory back."""
        self._answers = None
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        super().close()


@dataclass(frozen=True, slots=True)
class _AssembleJob:
    """Writes a batch's pixels into the slot; keys, targets and counts go through the pipe. See pool.Job."""

    plan: LoadPlan
    blocked: Arena
    cache: ImageCache | None
    ragged: bool
    augment_on: AugmentOn
    slot_bytes: int

    def open(self) -> Callable[[Task, Pixels], Any]:
        blocked = np.frombuffer(self.blocked.buffer, np.uint8)
        assembler = open_assembler(self.plan, self.cache, blocked, self.ragged, self.augment_on)

        def make(task: Task, memory: Pixels) -> tuple[Any, ...]:
            epoch, number = task
            return assembler.make(epoch, number, memory).pack()

        return make

    def release(self) -> None:
        self.plan.source.release()
