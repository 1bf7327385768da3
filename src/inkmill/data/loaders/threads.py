"""Threads of one process, a whole batch each.

OpenCV lets go of the interpreter lock while it decodes and warps, so a few threads help; beyond about four the lock is
what they wait for, and processes are faster. What speaks for threads: they start at once and copy nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

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

    def _produce(self, epoch: int, first: int) -> Generator[Made, None, None]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="inkmill-loader")
        pool, maker = self._pool, BatchMaker(self.plan, self._store, self._blocked_mask)
        pending: deque[Future[Made]] = deque()
        opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(0)  # one thread a batch: OpenCV's own would fight for the same cores over tiny pictures
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
            cv2.setNumThreads(opencv_threads)

    def _buffer(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.empty(self.plan.batch_bytes, np.uint8)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        super().close()
