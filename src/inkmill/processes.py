"""Starting processes of our own: they import little, leave signals to their parent, and leave when it does.

They are started by "spawn", which works on every system and beside threads, CUDA, and OpenCV's and LMDB's handles.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.heap import Arena
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

from inkmill import shared_memory as shared

T = TypeVar("T")

_AHEAD = 2  # tasks a process that may wait or be done: enough to go on with, and few results in memory


@contextmanager
def light_start(needs_main: bool) -> Iterator[None]:
    """Start processes that do not import the user's script, and that neither Ctrl-C nor SIGTERM reaches.

    multiprocessing imports `__main__` into every process. Ours need it only when what they are handed refers to it, and
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
    """Processes inherit it, until they ignore both signals themselves."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        resource_tracker.ensure_running()  # multiprocessing's own, with whose start it unblocks both
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def in_order(
    work: Callable[..., T], tasks: Iterable[tuple[Any, ...]], workers: int, begin: Callable[..., None], *given: Any
) -> Generator[T, None, None]:
    """Yield `work(*task)` of every task in their order, worked on by processes.

    Args:
        work: what to do, a function of a module.
        tasks: its arguments; drawn as processes become free, so that few results wait at any time.
        workers: processes, at least one; they start when there is work for them.
        begin: called with `given` in each process before anything else.
        given: what every process is handed.

    Raises:
        concurrent.futures.process.BrokenProcessPool: a process died.
    """
    handed = bytes(ForkingPickler.dumps((work, begin, given)))
    needs_main = b"__main__" in handed
    context = multiprocessing.get_context("spawn")
    # Through the pipe that a process is started by, nothing large: each would start when the last one had read it.
    memory = shared.allocate(len(handed))
    memory.buffer[: len(handed)] = handed
    pool = ProcessPoolExecutor(workers, context, _begin, (memory, len(handed)))
    del handed
    running: deque[Future[T]] = deque()
    try:
        for task in tasks:
            with light_start(needs_main):  # a process starts with the task that finds none free
                running.append(pool.submit(work, *task))
            if len(running) > _AHEAD * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and SIGTERM, which shells and cluster schedulers send to every process of a job.

    The parent ends its processes itself, once it has finished what it is at.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _begin(memory: Arena, size: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # the executor ends the others by SIGTERM when one of them has died
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _, begin, given = pickle.loads(memory.buffer[:size])  # what this program wrote there
    begin(*given)


def _leave_with(parent: BaseProcess) -> None:
    """A process whose parent was killed would wait for tasks for ever."""
    parent.join()
    os._exit(1)
