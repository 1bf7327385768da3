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

from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.maker import BatchMaker, Made
from inkmill.data.loaders.plan import LoadPlan


class ThreadLoader(Loader):
    """Makes batches in threads, two a thread ahead. The source's `get` must allow calls from several threads."""

    def __init__(self, plan: LoadPlan, threads: int) -> None:
        super().__init__(plan)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def _produce(self, epoch: int, first: int) -> Generator[Made, None, None]:
        pool, maker = self._pool or self._start(), BatchMaker(self.plan, self._store, self._blocked_mask)
        pending: deque[Future[Made]] = deque()
        following = iter(range(first, len(self)))

        def ask_for_next() -> None:
            number = next(following, None)
            if number is not None:
                pending.append(pool.submit(lambda: maker.make(epoch, number, self._buffer())))

        try:
            for _ in range(2 * self._threads):
                ask_for_next()
            while pending:
                made = pending.popleft().result()
                ask_for_next()
                yield made
        finally:
            for future in pending:
                future.cancel()

    def _start(self) -> ThreadPoolExecutor:
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="inkmill-loader")
        _ONE_THREAD_EACH.enter()
        self._finalizer = weakref.finalize(self, _end, self._pool)
        return self._pool

    def _buffer(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.empty(self.plan.batch_bytes, np.uint8)

    def close(self) -> None:
        """End the threads."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = self._pool = None
        super().close()


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
