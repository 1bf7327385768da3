"""The worker's side of loaders/pool.py: do the tasks that are asked for, write what is large into shared memory."""

from __future__ import annotations

import io
import os
import pickle
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.heap import Arena
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.errors import InkmillError
from inkmill.processes import leave_signals_to_parent

_NICE = 5
"""The training process goes first: a core that it has to wait for is a GPU that waits for its work.

Above all for others' sake it is not more: beside programs of usual priority a worker keeps a quarter of a core.
"""

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


class _JobPickler(ForkingPickler):
    """Takes shared memory out, a number in the place of each."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shares: list[Arena] = []

    def persistent_id(self, thing: object) -> int | None:
        if not isinstance(thing, Arena):
            return None
        self.shares.append(thing)
        return len(self.shares) - 1


class _PuttingIn(pickle.Unpickler):
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
    """Return the job that `taken_apart` took apart; its bytes come from the pool's own pipe."""
    found: Job = _PuttingIn(io.BytesIO(job), shares).load()
    return found


def work(connection: Connection, memory: Arena, run_now: Any, shares: list[Arena]) -> None:
    """Answer tasks until the connection closes.

    The first message is the job's bytes, each further one (slot, run, task). A task is answered by (slot, run, kind,
    content), in the order asked: "done" and what the job returned, "stale" when the run has been left meanwhile,
    "error" and what the user can mend, or "bug" and the traceback. None is answered by None, once all is closed.

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
            asked = _received(connection.recv)
            if asked is None:
                job.release()
                _send(connection, None)
                continue
            slot, run, task = asked
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
