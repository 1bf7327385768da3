"""Threads of one process, a whole batch each.

OpenCV lets go of the interpreter lock while it decodes and warps, so a few threads help; beyond about four the lock is
what they wait for, and processes are faster. What speaks for threads: they start at once and copy nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np

from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.plan import LoadPlan, positions


class ThreadLoader(Loader):
    """Makes batches in threads, two a thread ahead. The source's `get` must allow calls from several threads."""

    hands_over_any_size = True

    def __init__(self, plan: LoadPlan, threads: int) -> None:
        super().__init__(plan)
        self.makers = self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._pending: deque[Future[CollatedBatch]] = deque()
        self._ends_at: tuple[int, int, frozenset[str]] | None = (
            None  # the batch `_pending` goes on with, and bad samples known
        )

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        known_bad = frozenset(self._blocked)
        if self._ends_at != (epoch, first, known_bad):
            self._begin_run(epoch, first)
        self._ends_at = None
        for _ in range(first, len(self)):
            self._ask()
            made = self._pending.popleft().result()
            self._ask()
            yield made
        self._ends_at = (epoch + 1, 0, known_bad) if self.plan.shuffle else None

    def _begin_run(self, epoch: int, first: int) -> None:
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._size = self.batch_bytes
        self._assembler = BatchAssembler(self.plan, self._cache, self._blocked_mask, fits=self._fits)
        self._ahead = positions(epoch, first, len(self), endless=self.plan.shuffle)

    def _ask(self) -> None:
        """Ask for batches, two a thread ahead, also of the next epoch."""
        pool = self._pool or self._start()
        while len(self._pending) < 2 * self._threads and (position := next(self._ahead, None)) is not None:
            self._pending.append(pool.submit(_make, self._assembler, self._size, *position))

    def _start(self) -> ThreadPoolExecutor:
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="inkmill-loader")
        _ONE_THREAD_EACH.enter()
        self._finalizer = weakref.finalize(self, _end, self._pool)
        return self._pool

    def close(self) -> None:
        """End the threads."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = self._pool = self._ends_at = None
            self._pending.clear()
        super().close()


def _make(maker: BatchAssembler, size: int, epoch: int, number: int) -> CollatedBatch:
    """Make a batch in memory of its own. A function, for a method would keep a forgotten loader alive."""
    return maker.make(epoch, number, np.empty(size, np.uint8))


def _end(pool: ThreadPoolExecutor) -> None:
    pool.shutdown(cancel_futures=True)
    _ONE_THREAD_EACH.leave()


class _OneThreadEach:
    """OpenCV without threads of its own, which would fight for the same cores over tiny pictures.

    The setting belongs to the process, so it is changed with the first open loader and restored with the last.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, 0

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = cv2.getNumThreads()
                cv2.setNumThreads(0)
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                cv2.setNumThreads(self._before)


_ONE_THREAD_EACH = _OneThreadEach()
