"""Processes that answer tasks in shared memory: what loaders with worker processes have in common.

Nothing but integers goes to a worker and little comes back through its pipe: what is large is written where the
consumer reads it. The memory has no name (see shared.py), so nothing is left behind, whatever kills whom. Each worker
has its own pipe, because a queue's lock would stay locked when its holder is killed. Workers are started by "spawn": it
works on every system, and beside threads and CUDA. They live until the pool is closed.

A task is given to whoever has least to do, so that a slow core does fewer of them instead of holding up the rest. Each
answer taken makes room for one more, so workers that are faster than the consumer take turns: did they rest and start
together, they would leave it no core while they work, and it is the one that a GPU waits for.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from inkmill import shared_memory as shared
from inkmill.data.loaders.worker_process import Job, Task, serialize_job, work
from inkmill.errors import DataError
from inkmill.processes import light_start

SLOTS = 4
"""Answers a worker's memory holds: those asked for, those done that wait for their turn, and those lent."""

LENT = 2
"""Answers that stay as they are: a GPU fetches one while the consumer takes the next."""

_ASKED = 2  # of them asked for at a time: one in the making and one to go on with; more would tie work to slow workers
_PATIENCE_S = 5.0  # how long a worker may take to end by itself


@dataclass(slots=True)
class Answer:
    """What became of a task.

    Attributes:
        task: which one.
        content: what the job returned.
        memory: uint8, the slot it was answered in; valid until this iteration asks for the next answer but one.
        error: why there is no content.
    """

    task: Task
    content: Any
    memory: NDArray[np.uint8]
    error: Exception | None


@dataclass(slots=True, eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    memory: NDArray[np.uint8]  # its own: pages that one process alone writes are mapped once and stay in its cache
    free: list[int]  # its slots that may be written
    tasks: list[tuple[int, Task]] = field(default_factory=list)  # (slot, task) asked and not answered, oldest first


_Place = tuple[_Worker, int]  # a worker and its slot


class Pool:
    """Processes that do a job; they start with the first task.

    Args:
        job: what they do; pickled once.
        count: how many processes.
    """

    def __init__(self, job: Job, count: int) -> None:
        self._job, self._count = job, count
        self._run = RawValue("Q", 0)
        self._workers: list[_Worker] = []
        self._finalizer: Finalize | None = None

    @property
    def memory(self) -> list[NDArray[np.uint8]]:
        """Where answers lie, one array a worker, the same ones while the processes live; none before the first task."""
        return [worker.memory for worker in self._workers]

    @property
    def size(self) -> int:
        """Bytes of memory that answers take."""
        return self._job.slot_bytes * SLOTS * self._count

    def shortage(self) -> str | None:
        """Say that the memory will not lie in memory, or return None."""
        return None if self._workers else shared.shortage(self.size)

    def answers(self, tasks: Iterator[Task]) -> Generator[Answer, None, None]:
        """Yield the tasks' answers in order, those to come being worked on meanwhile; one iteration at a time.

        Raises:
            DataError: a worker died; the pool is closed then.
        """
        if not self._workers:
            self._start()
        self._run.value += 1  # tasks left from a run that ended early are answered at once and forgotten
        run = self._run.value
        for worker in self._workers:
            busy = {slot for slot, _ in worker.tasks}
            worker.free = [slot for slot in range(SLOTS) if slot not in busy]
        asked: deque[_Place] = deque()
        lent: deque[_Place] = deque()
        ready: dict[_Place, Answer] = {}
        while self._ask(tasks, asked) or asked:
            if not asked or asked[0] not in ready:  # without any asked for, all are busy with what was left of a run
                self._collect(ready, self._workers)
                continue
            lent.append(asked.popleft())
            yield ready.pop(lent[-1])
            if self._run.value != run:
                raise RuntimeError("these answers ended: the pool was released, closed, or asked anew meanwhile")
            if len(lent) == LENT:
                worker, slot = lent.popleft()
                worker.free.append(slot)
            self._collect(ready, [w for w in self._workers if w.free and w.tasks], patience=0)

    def release(self) -> None:
        """Have the processes close their files, which ends an iteration; the next task opens them again."""
        self._run.value += 1  # what is asked for is answered at once and forgotten
        for worker in self._workers:
            try:
                worker.connection.send(None)
            except OSError:
                self._died(worker)
        for worker in self._workers:
            try:
                while worker.connection.recv() is not None:
                    worker.tasks.pop(0)
            except (EOFError, OSError):
                self._died(worker)

    def _start(self) -> None:
        size = self._job.slot_bytes * SLOTS
        job, shares = serialize_job(self._job)  # once, not once a worker: a source may hold a million names
        context = multiprocessing.get_context("spawn")
        with light_start(needs_main=b"__main__" in job):
            for number in range(self._count):
                memory = shared.allocate(size)
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=work,
                    args=(theirs, memory, self._run, shares),
                    name=f"inkmill-loader-{number}",
                    daemon=True,
                )
                process.start()
                theirs.close()  # so that the pipe ends when the worker does
                self._workers.append(_Worker(process, ours, np.frombuffer(memory.buffer, np.uint8), []))
        # With a priority it also runs at exit, before multiprocessing waits for processes, which ignore its SIGTERM.
        self._finalizer = Finalize(self, _end, (self._workers,), exitpriority=1)
        for worker in self._workers:
            try:
                worker.connection.send_bytes(job)
            except OSError:
                self._died(worker)

    def _ask(self, tasks: Iterator[Task], asked: deque[_Place]) -> bool:
        """Ask for answers as long as a worker has room for one, the least busy first; return whether tasks are left."""
        while able := [worker for worker in self._workers if worker.free and len(worker.tasks) < _ASKED]:
            task = next(tasks, None)
            if task is None:
                return False
            worker = min(able, key=lambda w: len(w.tasks))
            slot = worker.free.pop()
            worker.tasks.append((slot, task))
            asked.append((worker, slot))
            try:
                worker.connection.send((slot, self._run.value, task))
            except OSError:
                self._died(worker)
        return True

    def _collect(self, ready: dict[_Place, Answer], workers: list[_Worker], patience: float | None = None) -> None:
        """Wait for answers, and take one of each worker that has any; the end of a worker wakes this up as well."""
        by_connection = {worker.connection: worker for worker in workers}
        for connection in wait(list(by_connection), patience):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                self._died(worker)
            if message is None:  # of a release that was interrupted
                continue
            slot, run, kind, content = message
            _, task = worker.tasks.pop(0)
            if run == self._run.value:
                ready[worker, slot] = self._answer(worker, slot, task, kind, content)
            else:
                worker.free.append(slot)

    def _answer(self, worker: _Worker, slot: int, task: Task, kind: str, content: Any) -> Answer:
        size = self._job.slot_bytes
        memory = worker.memory[slot * size : (slot + 1) * size]
        if kind == "done":
            return Answer(task, content, memory, None)
        error = content if kind == "error" else RuntimeError(f"a loader worker failed:\n{content}")
        return Answer(task, None, memory, error)

    def _died(self, worker: _Worker) -> NoReturn:
        worker.process.join(_PATIENCE_S)  # its pipe is closed: it is ending, and its exit code is about to come
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        hint = {-9: ": memory may have run out, try fewer workers or smaller batches", 1: ": its traceback is above"}
        doing = f"while it made batch {worker.tasks[0][1][1]}" if worker.tasks else "while it had nothing to do"
        name = f"{worker.process.name} (pid {worker.process.pid})"
        self.close()
        raise DataError(f"{name} {how} {doing}{hint.get(code or 0, '')}")

    def close(self) -> None:
        """End the processes and give their memory back; another task starts new ones."""
        self._run.value += 1
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None
        self._workers = []


def _end(workers: list[_Worker]) -> None:
    """Close the pipes, which ends the workers after the task they are at; end those that do not listen."""
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.process.join(_PATIENCE_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
    workers.clear()
