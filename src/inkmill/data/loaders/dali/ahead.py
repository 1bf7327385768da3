"""Batches made ahead of DALI, in threads or in worker processes, and what is on its way through the pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

from inkmill.data.loaders.dali.feed import DaliFeed, Fed
from inkmill.data.loaders.plan import positions
from inkmill.data.loaders.worker_process import Task
from inkmill.errors import DataError

_AHEAD = 2  # batches waiting in threads for DALI to take them


class Feeders(Protocol):
    """Make batches ahead."""

    def make_all(self, tasks: Iterator[Task]) -> Generator[Fed, None, None]:
        """Yield batches in order; each one's arrays are valid until the next is asked for.

        Args:
            tasks: (epoch, number, careful) of each; see `DaliFeed.make`.

        Raises:
            DataError: it cannot go on.
        """
        ...

    def close(self) -> None:
        """End threads or processes; further batches start them again."""
        ...


class ThreadFeeders:
    """Feeders in threads of this process.

    Args:
        make: makes a batch.
        threads: that call it; more than two would only wait for the interpreter lock.
    """

    def __init__(self, make: Callable[[int, int, bool], Fed], threads: int) -> None:
        self._make, self._threads = make, threads
        self._pool: ThreadPoolExecutor | None = None

    def make_all(self, tasks: Iterator[Task]) -> Generator[Fed, None, None]:
        """See Feeders."""
        waiting = deque(map(self._submit, islice(tasks, _AHEAD)))
        try:
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(map(self._submit, islice(tasks, 1)))
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, task: Task) -> Future[Fed]:
        epoch, number, careful = task
        self._pool = self._pool or ThreadPoolExecutor(self._threads, thread_name_prefix="inkmill-dali")
        return self._pool.submit(self._make, epoch, number, bool(careful))

    def close(self) -> None:
        """See Feeders."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class FeedAhead:
    """Hands batches to DALI in order, and runs on into the next epoch.

    Args:
        feeders: make them.
        feed: says what takes the place of a batch that nobody made.
        length: batches in an epoch.

    Attributes:
        flight: what DALI took and has not given back, oldest first.
    """

    def __init__(self, feeders: Feeders, feed: DaliFeed, length: int) -> None:
        self._feeders, self._feed, self._length = feeders, feed, length
        self._made: Generator[Fed, None, None] | None = None
        self._failed: DataError | None = None
        self._next, self._careful_batches = (0, 0), 0
        self.flight: deque[Fed] = deque()

    def seek(self, epoch: int, number: int, careful_batches: int = 0) -> None:
        """Go on with another batch; what was made ahead is thrown away.

        Args:
            epoch, number: the batch to come next.
            careful_batches: how many batches from there on are decoded by `BatchAssembler`.
        """
        self._stop()
        for fed in self.flight:
            fed.stale = True
        self._next, self._careful_batches = (epoch, number), careful_batches

    def following(self) -> tuple[int, int] | None:
        """Return which batch DALI gives next, or None when that is not settled."""
        return next(((fed.epoch, fed.number) for fed in self.flight if not fed.stale), None)

    def __call__(self) -> tuple[Any, ...]:
        """Return the inputs of the next batch; DALI copies them before it asks for more."""
        fed = self._take()
        self.flight.append(fed)
        inputs = tuple(fed.columns.values())
        fed.columns = {}  # DALI holds a copy
        return inputs

    def _take(self) -> Fed:
        if self._failed is None:
            if self._made is None:
                self._made = self._feeders.make_all(self._tasks(*self._next, self._careful_batches))
            try:
                return next(self._made)
            except DataError as error:
                self._stop()
                self._failed = error
        # Raised by the loader when its turn comes, as are those after it: number -1 is nobody's next batch.
        return self._feed.failed(self._next[0], -1, self._failed)

    def _tasks(self, epoch: int, number: int, careful_batches: int) -> Iterator[Task]:
        for count, position in enumerate(positions(epoch, number, self._length, endless=True)):
            yield *position, int(count < careful_batches)

    def _stop(self) -> None:
        if self._made is not None:
            self._made.close()
        self._made, self._failed = None, None

    def close(self) -> None:
        """End the threads or processes."""
        self._stop()
        self._feeders.close()
