"""Processes that make whole batches in shared memory.

Nothing but integers goes to a worker and nothing but keys, targets and counts comes back: the pixels are written where
the consumer reads them. The memory has no name (see shared.py), so nothing is left behind, whatever kills whom. Each
worker has its own pipe, because a queue's lock would stay locked when its holder is killed. Workers are started by
"spawn": it works on every system, and beside threads and CUDA. They live until the loader is closed.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import RawValue
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from inkmill.data import shared
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.maker import Made
from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.loaders.worker_process import work
from inkmill.errors import DataError

_SLOTS = 3  # batches a worker's memory holds: one in the making, one asked for, one with the consumer or waiting for it
_PATIENCE_S = 5.0  # how long a worker may take to end by itself

_Answer = tuple["_Worker", int, str, Any]  # whose, in which slot, of what kind, and its content; see worker_process


@dataclass(slots=True, eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    pixels: NDArray[
        np.uint8
    ]  # its own memory: pages that one process alone writes are mapped once and stay in its cache
    free: list[int]  # its slots that may be written
    tasks: list[tuple[int, int]] = field(default_factory=list)  # (slot, batch) asked for and not answered, oldest first


class WorkerLoader(Loader):
    """Makes batches in `workers` processes, which start with the first batch that is asked for."""

    borrows = True

    def __init__(self, plan: LoadPlan, workers: int) -> None:
        super().__init__(plan)
        self._count = workers
        self._blocked_shared = shared.allocate(len(plan.source))
        self._blocked_mask = np.frombuffer(self._blocked_shared.buffer, np.uint8)
        self._run = RawValue("Q", 0)
        self._workers: list[_Worker] = []
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def _produce(self, epoch: int, first: int) -> Generator[Made, None, None]:
        if not self._workers:
            self._start()
        self._run.value += 1  # tasks left from a run that ended early are answered at once and forgotten
        for worker in self._workers:
            busy = {slot for slot, _ in worker.tasks}
            worker.free = [slot for slot in range(_SLOTS) if slot not in busy]
        following = iter(range(first, len(self)))
        ready: dict[int, _Answer] = {}
        for number in range(first, len(self)):
            self._ask(epoch, following)
            while number not in ready:
                self._collect(ready)
            worker, slot, kind, content = ready.pop(number)
            yield self._made(worker, slot, kind, content)
            worker.free.append(slot)  # the consumer asks for the next batch: it is done with this one

    def _start(self) -> None:
        size = self.plan.batch_bytes * _SLOTS
        shortage = shared.shortage(size * self._count)
        if shortage is not None and shortage not in self.stats.notes:
            self.stats.notes.append(shortage)
        plan = ForkingPickler.dumps(self.plan)  # once, not once a worker: a source may hold a million names
        context = multiprocessing.get_context("spawn")
        with _light_start(needs_main=b"__main__" in bytes(plan)):
            for number in range(self._count):
                memory = shared.allocate(size)
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=work,
                    args=(theirs, memory, self._blocked_shared, self._run, self._store),
                    name=f"inkmill-loader-{number}",
                    daemon=True,
                )
                process.start()
                theirs.close()  # so that the pipe ends when the worker does
                self._workers.append(_Worker(process, ours, np.frombuffer(memory.buffer, np.uint8), []))
        self._finalizer = weakref.finalize(self, _end, self._workers)
        for worker in self._workers:
            try:
                worker.connection.send_bytes(plan)
            except OSError:
                self._died(worker)

    def _ask(self, epoch: int, following: Iterator[int]) -> None:
        """Ask for batches as long as there is a free slot, the least busy worker first."""
        while able := [worker for worker in self._workers if worker.free]:
            number = next(following, None)
            if number is None:
                return
            worker = min(able, key=lambda w: len(w.tasks))
            slot = worker.free.pop()
            worker.tasks.append((slot, number))
            try:
                worker.connection.send((slot, self._run.value, epoch, number))
            except OSError:
                self._died(worker)

    def _collect(self, ready: dict[int, _Answer]) -> None:
        """Wait for answers and take them; the end of a worker wakes this up as well."""
        by_connection = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection)):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                slot, run, number, kind, content = worker.connection.recv()
            except (EOFError, OSError):
                self._died(worker)
            worker.tasks.pop(0)
            if run == self._run.value:
                ready[number] = (worker, slot, kind, content)
            else:
                worker.free.append(slot)

    def _made(self, worker: _Worker, slot: int, kind: str, content: Any) -> Made:
        if kind == "error":
            raise content
        if kind == "bug":
            raise RuntimeError(f"a loader worker failed:\n{content}")
        size = self.plan.batch_bytes
        return Made.unpack(content, worker.pixels[slot * size : (slot + 1) * size])

    def _died(self, worker: _Worker) -> NoReturn:
        worker.process.join(_PATIENCE_S)  # its pipe is closed: it is ending, and its exit code is about to come
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        hint = {-9: ": memory may have run out, try fewer workers or smaller batches", 1: ": its traceback is above"}
        doing = f"while it made batch {worker.tasks[0][1]}" if worker.tasks else "while it had nothing to do"
        name = f"{worker.process.name} (pid {worker.process.pid})"
        self.close()
        raise DataError(f"{name} {how} {doing}{hint.get(code or 0, '')}")

    def close(self) -> None:
        """End the workers and give their memory back."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None
        self._workers = []
        super().close()


def _end(workers: list[_Worker]) -> None:
    """Close the pipes, which ends the workers after the batch they are at; end those that do not listen."""
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.process.join(_PATIENCE_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
    workers.clear()


@contextmanager
def _light_start(needs_main: bool) -> Iterator[None]:
    """Start processes that do not import the user's script, and that Ctrl-C does not reach.

    multiprocessing imports `__main__` into every worker. Ours need it only when the plan itself refers to it, and
    without it they start in a fraction of the time (a training script imports torch), and scripts without the
    `if __name__ == "__main__"` guard work.
    """
    main: dict[str, Any] = vars(sys.modules["__main__"])
    names: list[str] = [] if needs_main else [name for name in ("__spec__", "__file__") if name in main]
    hidden: dict[str, Any] = {name: main[name] for name in names}
    main.update(dict.fromkeys(names))
    mask = None
    if hasattr(signal, "pthread_sigmask"):  # inherited by the processes, which therefore never see Ctrl-C
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        main.update(hidden)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
