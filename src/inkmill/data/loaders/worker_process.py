"""The worker's side of loaders/workers.py: make the batch that is asked for, write its pixels into shared memory."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.connection import Connection
from multiprocessing.heap import Arena
from typing import Any

import cv2
import numpy as np

from inkmill.data.keep import Store
from inkmill.data.loaders.maker import BatchMaker
from inkmill.data.loaders.plan import LoadPlan
from inkmill.errors import InkmillError

Task = tuple[int, int, int, int]
"""(slot, run, epoch, number): make batch `number` of `epoch` in `slot`, for the run of that number."""


def work(connection: Connection, memory: Arena, blocked: Arena, run_now: Any, store: Store | None) -> None:
    """Answer tasks until the connection closes.

    The first message is the plan. Each `Task` is answered by (slot, run, number, kind, content), in the order asked:
    "made" and what `Made.pack` gives, "stale" when the run has been left meanwhile, "error" and what the user can mend,
    or "bug" and the traceback.

    Args:
        connection: to the loader.
        memory: shared bytes, slots of `plan.batch_bytes`, written by this worker alone.
        blocked: shared bytes, one a sample; see BatchMaker.
        run_now: shared integer, the number of the loader's present run.
        store: the kept pictures, or None.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the loader ends its workers itself
    cv2.setNumThreads(0)  # one core each: the workers are the parallelism
    try:
        plan: LoadPlan = connection.recv()
        maker = BatchMaker(plan, store, np.frombuffer(blocked.buffer, np.uint8))
        pixels = np.frombuffer(memory.buffer, np.uint8)
        while (task := connection.recv()) is not None:
            slot, run, epoch, number = task
            if run != run_now.value:
                connection.send((slot, run, number, "stale", None))
                continue
            buffer = pixels[slot * plan.batch_bytes : (slot + 1) * plan.batch_bytes]
            connection.send((slot, run, number, *_answer(maker, epoch, number, buffer)))
    except (EOFError, ConnectionError):
        return  # the loader's process is gone


def _answer(maker: BatchMaker, epoch: int, number: int, buffer: Any) -> tuple[str, Any]:
    try:
        return "made", maker.make(epoch, number, buffer).pack()
    except InkmillError as error:
        return "error", error
    except Exception:
        return "bug", traceback.format_exc()
