"""The worker's side of loaders/pool.py: do the tasks that are asked for, write what is large into shared memory."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.heap import Arena
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.processes import leave_signals_to_parent
from inkmill.errors import InkmillError

Task = tuple[int, ...]
"""(epoch, number) of a batch, and what else the job wants to know."""
Do = Callable[[Task, NDArray[np.uint8]], Any]
"""Does a task: writes what is large into the memory, uint8 (slot_bytes,), and returns what is cheap to send."""


class Job(Protocol):
    """What workers do. It is pickled into them."""

    @property
    def slot_bytes(self) -> int:
        """The memory that a task is given."""
        ...

    def open(self, *handed: Any) -> Do:
        """Return what does a task; called once in each worker, with what it was handed as it started."""
        ...


def work(connection: Connection, memory: Arena, run_now: Any, handed: tuple[Any, ...]) -> None:
    """Answer tasks until the connection closes.

    The first message is the job, each further one (slot, run, task). A task is answered by (slot, run, kind, content),
    in the order asked: "done" and what the job returned, "stale" when the run has been left meanwhile, "error" and what
    the user can mend, or "bug" and the traceback.

    Args:
        connection: to the pool.
        memory: shared bytes, slots of `job.slot_bytes`, written by this worker alone.
        run_now: shared integer, the number of the pool's present run.
        handed: for `job.open`.
    """
    leave_signals_to_parent()
    cv2.setNumThreads(0)  # one core each: the workers are the parallelism
    try:
        job: Job = connection.recv()
        do, size = job.open(*handed), job.slot_bytes
        everything = np.frombuffer(memory.buffer, np.uint8)
        while True:
            slot, run, task = connection.recv()
            if run != run_now.value:
                connection.send((slot, run, "stale", None))
                continue
            connection.send((slot, run, *_answer(do, task, everything[slot * size : (slot + 1) * size])))
    except (EOFError, ConnectionError):
        return  # the pool's process is gone


def _answer(do: Do, task: Task, memory: NDArray[np.uint8]) -> tuple[str, Any]:
    try:
        return "done", do(task, memory)
    except InkmillError as error:
        return "error", error
    except Exception:
        return "bug", traceback.format_exc()
