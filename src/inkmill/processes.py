"""Processes of our own: they import little, leave signals to their parent, and exit when it does.

`Executor` is what jobs over whole data sets run on; loaders start their workers themselves, by `light_start`. All are
started by "spawn", which works on every system and beside threads, CUDA, and OpenCV's and LMDB's handles.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.heap import Arena
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

from inkmill import shared_memory

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

_IN_FLIGHT = 2  # tasks a process, running, waiting or done: none runs out of work, and few results are in memory


@contextmanager
def light_start(needs_main: bool) -> Iterator[None]:
    """Start processes that do not import the user's script, and that neither Ctrl-C nor SIGTERM reaches.

    multiprocessing imports `__main__` into every process. Ours need it only when their job refers to it, and
    without it they start in a fraction of the time (a training script imports torch), and scripts without the
    `if __name__ == "__main__"` guard work.
    """
    main: dict[str, Any] = vars(sys.modules["__main__"])
    names: list[str] = [] if needs_main else [name for name in ("__spec__", "__file__") if name in main]
    hidden: dict[str, Any] = {name: main[name] for name in names}
    with _signals_blocked():
        main.update(dict.fromkeys(names))
        try:
            yield
        finally:
            main.update(hidden)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block both signals; processes inherit that, until they ignore them themselves."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        resource_tracker.ensure_running()  # its start unblocks both, so it comes first
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class WorkerDiedError(RuntimeError):
    """A process that worked on a task died: killed by the system for want of memory, or crashed in a library."""


class Executor(ABC):
    """Where a job over a whole data set runs its tasks: here, in processes, or (with a subclass) on other machines.

    The jobs only assume what `map` promises: `work` is a function of a module; what it is given and what it returns
    can be pickled; no call depends on another one.
    """

    @abstractmethod
    def map(self, work: Callable[[S, T], R], shared: S, tasks: Iterable[T]) -> Generator[R, None, None]:
        """Yield `work(shared, task)` of every task, in the order of the tasks. Close the generator to stop early.

        Args:
            work: what to do.
            shared: what all tasks need, such as a source; given to each process once.
            tasks: drawn as workers become free, so that the number of tasks in flight, and of results in memory, is
                bounded however many there are.

        Raises:
            WorkerDiedError: a process died. What `work` raises is raised here as it is.
        """


class SerialExecutor(Executor):
    """Runs the tasks one after the other in this process."""

    def map(self, work: Callable[[S, T], R], shared: S, tasks: Iterable[T]) -> Generator[R, None, None]:
        """See `Executor.map`."""
        yield from (work(shared, task) for task in tasks)


class ProcessExecutor(Executor):
    """Runs the tasks in processes of this machine, which start when there is work for them.

    Args:
        workers: how many processes, at least one.
        initializer: called in each process before anything else; a function of a module.
    """

    def __init__(self, workers: int, initializer: Callable[[], object] | None = None) -> None:
        self.workers = workers
        self.initializer = initializer

    def map(self, work: Callable[[S, T], R], shared: S, tasks: Iterable[T]) -> Generator[R, None, None]:
        """See `Executor.map`."""
        # 1. Put the job into shared memory. Through the pipe that a process is started by, nothing large could go: each
        #    process would only start once the one before had read it all.
        job = bytes(ForkingPickler.dumps((work, self.initializer, shared)))
        needs_main = b"__main__" in job
        memory = shared_memory.allocate(len(job))
        memory.buffer[: len(job)] = job
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.workers, context, _set_up, (memory, len(job)))
        del job
        in_flight: deque[Future[R]] = deque()
        try:
            # 2. Keep a few tasks in flight, and yield the oldest result as soon as there are enough.
            for task in tasks:
                with light_start(needs_main):  # submitting starts a process as long as there are too few
                    in_flight.append(pool.submit(_run_task, task))
                if len(in_flight) > _IN_FLIGHT * self.workers:
                    yield in_flight.popleft().result()
            # 3. Yield the rest.
            while in_flight:
                yield in_flight.popleft().result()
        except BrokenProcessPool as error:
            raise WorkerDiedError("a worker process died") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def local_executor(workers: int, initializer: Callable[[], object] | None = None) -> Executor:
    """Return an executor with so many processes of this machine; with 0 the tasks run in this one."""
    return ProcessExecutor(workers, initializer) if workers > 0 else SerialExecutor()


def leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and SIGTERM, which shells and cluster schedulers send to every process of a job.

    The parent ends its processes itself, once it has finished what it is at.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


_work: Callable[[Any], Any]
"""In a process of an executor: the job's function, with what all tasks share."""


def _set_up(memory: Arena, size: int) -> None:
    """Prepare a process of an executor, before its first task."""
    global _work
    # 1. Signals: Ctrl-C is up to the parent; by SIGTERM the pool ends the other processes when one of them has died.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # 2. A parent that is killed cannot end its processes, which would wait for tasks for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    # 3. The job, which this program itself has written there.
    work, initializer, shared = pickle.loads(memory.buffer[:size])
    if initializer is not None:
        initializer()
    _work = partial(work, shared)


def _run_task(task: Any) -> Any:
    return _work(task)


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
