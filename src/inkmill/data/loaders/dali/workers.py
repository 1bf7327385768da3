"""Feeders of DALI in worker processes: they read, draw and lay out all inputs of a batch in shared memory.

In threads that work costs some twenty microseconds a sample under the interpreter lock, which the training loop needs
too. Here the trainer's process is left with views of what the workers wrote, which DALI copies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.heap import Arena
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill import shared_memory as shared
from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.dali.columns import Columns
from inkmill.data.loaders.dali.feed import DaliFeed, Fed
from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.loaders.pool import Answer, Pool
from inkmill.data.loaders.worker_process import Task
from inkmill.data.pipeline.cache import ImageCache
from inkmill.errors import DataError

_ALIGNMENT = 64
_LOOKED_AT = 64  # samples that tell how large a batch is
_NO_PIXELS = np.empty(0, np.uint8)

Place = tuple[int, str, list[tuple[int, ...]], bool]
"""Where a column lies: offset, dtype, the shapes of its arrays one after the other, and whether it is a list."""


@dataclass(frozen=True, slots=True)
class FeedJob:
    """Makes the inputs of batches in the slot; what is too large for it goes through the pipe.

    Attributes:
        plan: what to load.
        resized: whether pictures go in decoded and resized.
        slot_bytes: room for a batch.
        blocked, store: see WorkerFeeders.
        sizes: shared bytes, int32 (N, 3); see DaliFeed.
    """

    plan: LoadPlan
    resized: bool
    slot_bytes: int
    blocked: Arena
    sizes: Arena
    cache: ImageCache | None

    def open(self) -> Callable[[Task, NDArray[np.uint8]], Any]:
        """Return what makes a batch; see worker_process.Job."""
        count = len(self.plan.source)
        known = np.frombuffer(self.sizes.buffer, np.int32)[: 3 * count].reshape(count, 3)
        blocked = np.frombuffer(self.blocked.buffer, np.uint8)
        feed = DaliFeed(self.plan, self.cache, blocked, self.resized, sizes=known)

        def make(task: Task, memory: NDArray[np.uint8]) -> Any:
            epoch, number, careful = task
            fed = feed.make(epoch, number, bool(careful), memory)
            if fed.error is not None:
                raise fed.error
            assert fed.made is not None
            fed.made.batch.images = _NO_PIXELS  # DALI brings them
            return fed.made.pack(), fed.careful, pack(fed.columns, memory)

        return make

    def release(self) -> None:
        """See worker_process.Job."""
        self.plan.source.release()


class WorkerFeeders:
    """Feeders in `count` processes.

    Args:
        plan: what to load.
        store: the cached pictures, or None.
        blocked: shared bytes, one a sample; see DaliFeed.
        feed: the same feed in this process, which is asked how large a batch is.
        resized: whether pictures go in decoded and resized.
        count: how many.
        notes: gets a sentence for each limit that was met.
    """

    def __init__(
        self,
        plan: LoadPlan,
        cache: ImageCache | None,
        blocked: Arena,
        feed: DaliFeed,
        resized: bool,
        count: int,
        notes: list[str],
    ) -> None:
        sizes = shared.allocate(12 * len(plan.source))
        self._feed, self._notes = feed, notes
        self._pool = Pool(FeedJob(plan, resized, slot_bytes(plan, feed, resized), blocked, sizes, cache), count)

    def make_all(self, tasks: Iterator[Task]) -> Generator[Fed, None, None]:
        """See Feeders."""
        self._note(self._pool.shortage())
        for answer in self._pool.answers(tasks):
            yield self._fed(answer)

    def _fed(self, answer: Answer) -> Fed:
        epoch, number, careful = answer.task
        if answer.error is not None:
            return self._feed.failed(epoch, number, answer.error, bool(careful))
        made, was_careful, (columns, sent) = answer.content
        if sent:
            self._note("some batches are larger than their shared memory and pass through a pipe, which is slower")
        return Fed(
            epoch, number, CollatedBatch.unpack(made, _NO_PIXELS), unpack(columns, answer.memory), careful=was_careful
        )

    def _note(self, sentence: str | None) -> None:
        if sentence is not None and sentence not in self._notes:
            self._notes.append(sentence)

    def close(self) -> None:
        """See Feeders."""
        self._pool.close()


def slot_bytes(plan: LoadPlan, feed: DaliFeed, resized: bool) -> int:
    """Return how much shared memory a batch needs: by some samples from all over the source, and half as much again."""
    rows = np.unique(np.linspace(0, len(plan.source) - 1, _LOOKED_AT).astype(np.int64))
    columns = sum(_bytes(column) for column in feed.columns_for(rows).values()) * plan.batch_size // len(rows)
    pictures = plan.batch_bytes if resized else 0
    encoded = 0 if resized else max(map(_encoded_bytes, [plan.source] * len(rows), rows.tolist())) * plan.batch_size
    return pictures + (columns + encoded) * 3 // 2 + 2**16


def _encoded_bytes(source: Any, index: int) -> int:
    try:
        return len(source.get(index).image)
    except (DataError, OSError):
        return 0


def _arrays(column: Any) -> list[NDArray[Any]]:
    return column if isinstance(column, list) else [column]


def _bytes(column: Any) -> int:
    return sum(array.nbytes for array in _arrays(column))


def pack(columns: Columns, memory: NDArray[np.uint8]) -> tuple[dict[str, Place | Any], bool]:
    """Write columns into memory, one after the other.

    Args:
        columns: of the graph. One that lies at the memory's start already stays there.
        memory: uint8, 64-byte aligned.

    Returns:
        The columns' places by name, or the column itself where there is no room for it; and whether there is such one.
    """
    places: dict[str, Place | Any] = {}
    end, sent = 0, False
    for name, column in columns.items():
        arrays, size = _arrays(column), _bytes(column)
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        if offset + size > len(memory):
            places[name], sent = column, True
            continue
        end = offset + size
        places[name] = offset, arrays[0].dtype.str, [array.shape for array in arrays], isinstance(column, list)
        if np.shares_memory(arrays[0], memory):
            assert offset == 0, "pictures that were made in the slot lie at its start"
        else:
            np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays], out=memory[offset:end])
    return places, sent


def unpack(places: dict[str, Place | Any], memory: NDArray[np.uint8]) -> Columns:
    """Return what `pack` wrote, as views of the memory."""
    return {name: _view(place, memory) if type(place) is tuple else place for name, place in places.items()}


def _view(place: Place, memory: NDArray[np.uint8]) -> Any:
    offset, dtype, shapes, is_list = place
    counts = [int(np.prod(shape)) for shape in shapes]
    flat = memory[offset : offset + sum(counts) * np.dtype(dtype).itemsize].view(dtype)
    if not is_list:
        return flat.reshape(shapes[0])
    ends = np.cumsum([0, *counts]).tolist()
    return [flat[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)]
