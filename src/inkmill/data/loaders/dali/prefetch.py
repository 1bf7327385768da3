"""Batches staged ahead of DALI by worker processes, and what is in flight through its pipeline.

In the trainer's process staging would cost some twenty microseconds a sample under the interpreter lock, which training
needs too. The processes, those of the worker loader's pool, write the inputs into shared memory; the trainer is left
with views of it, which DALI copies.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.dali.inputs import Inputs
from inkmill.data.loaders.dali.staging import BatchStager, StagedBatch
from inkmill.data.loaders.plan import positions
from inkmill.data.loaders.pool import Answer, Do, Pool, Task
from inkmill.errors import DataError

_ALIGNMENT = 64  # bytes: a cache line
_NO_PIXELS = np.empty(0, np.uint8)
_TOO_LARGE = "some batches are larger than their shared memory and pass through a pipe, which is slower"

Packed = tuple[bytes, list[tuple[int, int]], bool]
"""Pickled inputs without their arrays' bytes, where in shared memory those lie, and whether some are in the pickle."""


class PrefetchQueue:
    """Hands staged batches to DALI in order, and runs on into the next epoch.

    Args:
        stager: stages them, in the processes; in this one it says what takes the place of a batch that nobody staged.
        processes: how many.
        length: batches in an epoch.
        notes: gets a sentence for each limit that was met.

    Attributes:
        in_flight: what DALI took and has not given back, oldest first.
    """

    def __init__(self, stager: BatchStager, processes: int, length: int, notes: list[str]) -> None:
        self._stager = stager
        self._pool = Pool(_StageJob(stager, stager.slot_bytes()), processes)
        self._length = length
        self._notes = notes
        self._answers: Generator[Answer, None, None] | None = None
        self._failure: DataError | None = None
        self._next = (0, 0)
        self._fallbacks = 0
        self.in_flight: deque[StagedBatch] = deque()

    def seek(self, epoch: int, number: int, fallbacks: int = 0) -> None:
        """Continue with another batch; what was staged ahead is thrown away.

        Args:
            epoch, number: the batch to come next.
            fallbacks: how many batches from there on are decoded by `BatchAssembler`.
        """
        self._stop()
        for staged in self.in_flight:
            staged.stale = True
        self._next = (epoch, number)
        self._fallbacks = fallbacks

    def following(self) -> tuple[int, int] | None:
        """Return which batch DALI gives next, or None where none is in flight."""
        return next(((staged.epoch, staged.number) for staged in self.in_flight if not staged.stale), None)

    def __call__(self) -> tuple[Any, ...]:
        """Return the inputs of the next batch; DALI copies them before it asks for more."""
        staged = self._take()
        self.in_flight.append(staged)
        inputs = tuple(staged.inputs.values())
        staged.inputs = {}  # DALI holds a copy
        return inputs

    def _take(self) -> StagedBatch:
        if self._failure is None:
            try:
                if self._answers is None:
                    self._note(self._pool.shortage())
                    self._answers = self._pool.answers(self._tasks())
                return self._unpacked(next(self._answers))
            except DataError as error:  # a process died
                self._stop()
                self._failure = error
        # An exception here would kill the pipeline: the loader raises it when its turn comes. What DALI asks for
        # meanwhile is a stand-in too: number -1 is nobody's next batch.
        return self._stager.failed(self._next[0], -1, self._failure)

    def _tasks(self) -> Iterator[Task]:
        for count, position in enumerate(positions(*self._next, self._length, endless=True)):
            yield *position, int(count < self._fallbacks)

    def _unpacked(self, answer: Answer) -> StagedBatch:
        epoch, number, fallback = answer.task
        if answer.error is not None:
            return self._stager.failed(epoch, number, answer.error, bool(fallback))
        collated, fell_back, packed = answer.content
        self._note(_TOO_LARGE if packed[2] else None)
        inputs = unpack(packed, answer.memory)
        return StagedBatch(epoch, number, CollatedBatch.unpack(collated, _NO_PIXELS), inputs, fallback=fell_back)

    def _note(self, sentence: str | None) -> None:
        if sentence is not None and sentence not in self._notes:
            self._notes.append(sentence)

    def _stop(self) -> None:
        if self._answers is not None:
            self._answers.close()
        self._answers = None
        self._failure = None

    def close(self) -> None:
        """End the processes; another batch starts them again."""
        self._stop()
        self._pool.close()


@dataclass(frozen=True, slots=True)
class _StageJob:
    """Stages batches in a process, their inputs in the slot; see pool.Job."""

    stager: BatchStager
    slot_bytes: int

    def open(self) -> Do:
        return self._stage

    def _stage(self, task: Task, memory: NDArray[np.uint8]) -> Any:
        epoch, number, fallback = task
        staged = self.stager.stage(epoch, number, bool(fallback), memory)
        if staged.error is not None:
            raise staged.error
        assert staged.collated is not None
        staged.collated.batch.images = _NO_PIXELS  # DALI brings them
        return staged.collated.pack(), staged.fallback, pack(staged.inputs, memory)

    def release(self) -> None:
        self.stager.plan.source.release()


def pack(inputs: Inputs, memory: NDArray[np.uint8]) -> Packed:
    """Write the bytes of all arrays into memory, one after the other; what has no room goes into the pickle.

    Args:
        inputs: of the graph; the first may lie at the memory's start already, and stays there.
        memory: uint8, 64-byte aligned.
    """
    spans: list[tuple[int, int]] = []
    too_large = False

    def goes_into_pickle(buffer: pickle.PickleBuffer) -> bool:
        nonlocal too_large
        data = np.frombuffer(buffer.raw(), np.uint8)
        start = -(-spans[-1][1] // _ALIGNMENT) * _ALIGNMENT if spans else 0
        if start + len(data) > len(memory):
            too_large = True
            return True
        if not np.may_share_memory(data, memory):  # else pictures that were decoded into the slot's start
            memory[start : start + len(data)] = data
        spans.append((start, start + len(data)))
        return False

    pickled = pickle.dumps(inputs, protocol=5, buffer_callback=goes_into_pickle)
    return pickled, spans, too_large


def unpack(packed: Packed, memory: NDArray[np.uint8]) -> Inputs:
    """Return what `pack` wrote, as views of the memory; the pickle comes from this process's own workers."""
    pickled, spans, _ = packed
    inputs: Inputs = pickle.loads(pickled, buffers=(memory[start:end] for start, end in spans))
    return inputs
