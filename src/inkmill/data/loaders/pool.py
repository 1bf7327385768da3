"""Processes that answer tasks in shared memory: what loaders with worker processes have in common.

Nothing but integers goes to a worker and little comes back through its pipe: what is large is written where the
consumer reads it. The memory has no name (see shared_memory.py), so nothing is left behind, whatever kills whom. Each
worker has its own pipe, because a queue's lock would stay locked when its holder is killed. Workers are started by
"spawn": it works on every system, and beside threads and CUDA. They live until the pool is closed.

A task is given to whoever has least to do, so that a slow core does fewer of them instead of holding up the rest. Each
answer taken schedules one more, so workers that are faster than the consumer take turns: did they rest and start
together, they would leave it no core while they work, and it is the one that a GPU waits for.

The pool's side comes first, the worker's side (`work`) after it.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.heap import Arena
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import RawValue
from multiprocessing.util import Finalize
from typing import Any, NoReturn, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill import shared_memory as shared
from inkmill.errors import DataError, InkmillError
from inkmill.processes import leave_signals_to_parent, light_start

SLOTS = 4
"""Answers that a worker's memory holds: tasks in flight, answers that wait for their turn, and those lent."""

LENT = 2
"""Answers that stay as they are: a GPU fetches one while the consumer takes the next."""

_IN_FLIGHT = 2  # tasks a worker: the one it is at and the next one; more would tie work to slow workers
_PATIENCE_S = 5.0  # how long a worker may take to end by itself

# The training process goes first: a core that it has to wait for is a GPU that waits for its work. It is not more for
# the sake of other programs: beside those of usual priority a worker keeps a quarter of a core.
_NICE = 5


Task = tuple[int, ...]
"""(epoch, number) of a batch, and what else the job wants to know."""
Do = Callable[[Task, NDArray[np.uint8]], Any]
"""Does a task: writes what is large into the memory, uint8 (slot_bytes,), and returns what is cheap to send."""


class Job(Protocol):
    """What workers do. It is pickled into them, and may hold shared memory."""

    @property
    def slot_bytes(self) -> int:
        """The memory that a task is given."""
        ...

    def open(self) -> Do:
        """Return what does a task; called once in each worker."""
        ...

    def release(self) -> None:
        """Close the files that tasks opened; called between tasks, which open them again."""
        ...


@dataclass(slots=True)
class Answer:
    """The answer to a task.

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
    tasks: list[tuple[int, Task]] = field(default_factory=list)  # (slot, task) in flight, oldest first


_Place = tuple[_Worker, int]  # a worker and its slot


class Pool:
    """Processes that do a job; they start with the first task.

    Args:
        job: what they do; pickled once.
        count: how many processes.
        memory: gets the arrays that answers lie in, one a worker, for as long as the processes live.
    """

    def __init__(self, job: Job, count: int, memory: list[NDArray[np.uint8]] | None = None) -> None:
        self._job = job
        self._count = count
        self._memory = [] if memory is None else memory
        self._run = RawValue("Q", 0)
        self._workers: list[_Worker] = []
        self._finalizer: Finalize | None = None

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
        # 1. Start, or take over workers that are busy with what is left of an earlier run: they answer that at once.
        if not self._workers:
            self._start()
        self._run.value += 1
        run = self._run.value
        for worker in self._workers:
            busy = {slot for slot, _ in worker.tasks}
            worker.free = [slot for slot in range(SLOTS) if slot not in busy]
        in_flight: deque[_Place] = deque()  # in the order of the tasks
        lent: deque[_Place] = deque()
        ready: dict[_Place, Answer] = {}
        # 2. Keep every worker supplied.
        while self._send_tasks(tasks, in_flight) or in_flight:
            # 3. Wait for the oldest task's answer; with none in flight, all are busy with what is left of a run.
            if not in_flight or in_flight[0] not in ready:
                self._collect(ready, self._workers)
                continue
            # 4. Lend its slot to the consumer.
            lent.append(in_flight.popleft())
            yield ready.pop(lent[-1])
            if self._run.value != run:
                raise RuntimeError("these answers ended: the pool was released, closed, or given new tasks meanwhile")
            # 5. Take back the slot before the last, and collect what is there, so that its worker gets the next task.
            if len(lent) == LENT:
                worker, slot = lent.popleft()
                worker.free.append(slot)
            self._collect(ready, [w for w in self._workers if w.free and w.tasks], patience=0)

    def release(self) -> None:
        """Have the processes close their files, which ends an iteration; the next task opens them again."""
        self._run.value += 1  # tasks in flight are answered at once and forgotten
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
        # First, so that a start that is interrupted leaves no process. With a priority it also runs at exit, before
        # multiprocessing waits for processes, which ignore its SIGTERM.
        self._finalizer = Finalize(self, _end, (self._workers,), exitpriority=1)
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
                self._memory.append(self._workers[-1].memory)
        for worker in self._workers:
            try:
                worker.connection.send_bytes(job)
            except OSError:
                self._died(worker)

    def _send_tasks(self, tasks: Iterator[Task], in_flight: deque[_Place]) -> bool:
        """Send tasks as long as a worker has room for one, the least busy first; return whether tasks are left."""
        while able := [worker for worker in self._workers if worker.free and len(worker.tasks) < _IN_FLIGHT]:
            task = next(tasks, None)
            if task is None:
                return False
            worker = min(able, key=lambda w: len(w.tasks))
            slot = worker.free.pop()
            worker.tasks.append((slot, task))
            in_flight.append((worker, slot))
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
        self._memory.clear()


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


class _JobPickler(ForkingPickler):
    """Replaces each piece of shared memory by a number."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shares: list[Arena] = []

    def persistent_id(self, thing: object) -> int | None:
        if not isinstance(thing, Arena):
            return None
        self.shares.append(thing)
        return len(self.shares) - 1


class _JobUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shares: list[Arena]) -> None:
        super().__init__(file)
        self._shares = shares

    def persistent_load(self, number: int) -> Arena:
        return self._shares[number]


def serialize_job(job: Job) -> tuple[bytes, list[Arena]]:
    """Return a job as bytes, and the shared memory in it.

    A process can only be handed shared memory as it starts. What is handed then goes through a pipe that nobody reads
    before the process runs: were it more than fits the pipe, each process would start when the last one has.
    """
    file = io.BytesIO()
    pickler = _JobPickler(file)
    pickler.dump(job)
    return file.getvalue(), pickler.shares


def deserialize_job(job: bytes, shares: list[Arena]) -> Job:
    """Return the job that `serialize_job` serialized; its bytes come from the pool's own pipe."""
    found: Job = _JobUnpickler(io.BytesIO(job), shares).load()
    return found


def work(connection: Connection, memory: Arena, run_now: Any, shares: list[Arena]) -> None:
    """Answer tasks until the connection closes.

    The first message is the job's bytes, each further one (slot, run, task). A task is answered by (slot, run, kind,
    content), in the order sent: "done" and what the job returned, "stale" when the run has been left meanwhile,
    "error" and what the user can fix, or "bug" and the traceback. None is answered by None, once all is closed.

    Args:
        connection: to the pool.
        memory: shared bytes, slots of `job.slot_bytes`, written by this worker alone.
        run_now: shared integer, the number of the pool's present run.
        shares: the shared memory in the job.
    """
    leave_signals_to_parent()
    if hasattr(os, "nice"):
        os.nice(_NICE)
    cv2.setNumThreads(0)  # one core each: the workers are the parallelism
    with suppress(_PoolGoneError):
        job = deserialize_job(_received(connection.recv_bytes), shares)
        do, size = job.open(), job.slot_bytes
        everything = np.frombuffer(memory.buffer, np.uint8)
        while True:
            message = _received(connection.recv)
            if message is None:
                job.release()
                _send(connection, None)
                continue
            slot, run, task = message
            if run != run_now.value:
                _send(connection, (slot, run, "stale", None))
                continue
            _send(connection, (slot, run, *_answer(do, task, everything[slot * size : (slot + 1) * size])))


class _PoolGoneError(Exception):
    """The pool's process has ended."""


def _received(receive: Callable[[], Any]) -> Any:
    try:
        return receive()
    except (EOFError, ConnectionError):
        raise _PoolGoneError from None


def _send(connection: Connection, answer: Any) -> None:
    try:
        connection.send(answer)
    except ConnectionError:
        raise _PoolGoneError from None


def _answer(do: Do, task: Task, memory: NDArray[np.uint8]) -> tuple[str, Any]:
    try:
        return "done", do(task, memory)
    except InkmillError as error:
        return "error", error
    except Exception:
        return "bug", traceback.format_exc()
