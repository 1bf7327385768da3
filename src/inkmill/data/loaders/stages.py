"""Where those who make batches spend their time, so that a loader that is too slow can say what would help.

Clocking every picture would slow down what is measured. So of the stages that go picture by picture (read, decode,
fit) one picture in sixteen is clocked and counts sixteen times; those that go batch by batch are clocked whole. What is
left of the batch's time is "other": order, labels, laying out. Seconds are those on the wall: a worker that waits for
the disk is reading, one that waits for a core is at whatever it wants the core for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, Self

Stage = Literal["read", "decode", "fit", "keep", "augment", "other"]
STAGES: tuple[Stage, ...] = ("read", "decode", "fit", "keep", "augment", "other")

_EVERY = 16

Seconds = dict[str, float]
"""Seconds by stage."""


class StageClock:
    """Clocks the making of one batch, which begins with the clock.

    Args:
        number: of the batch; other rows are clocked in other batches.
    """

    __slots__ = ("_began", "_last", "_number", "_seconds")

    def __init__(self, number: int) -> None:
        self._number = number
        self._seconds: Seconds = dict.fromkeys(STAGES, 0.0)
        self._began = self._last = perf_counter()

    @contextmanager
    def whole(self, stage: Stage) -> Iterator[None]:
        """Clock a piece of work on the whole batch."""
        began = perf_counter()
        yield
        self._seconds[stage] += perf_counter() - began

    def rows(self, count: int) -> list[Self | None]:
        """Return for each row of the batch the clock, if the row is one of those that are clocked, else None."""
        clocks: list[Self | None] = [None] * count
        clocked = range(-self._number % _EVERY, count, _EVERY)
        clocks[clocked.start :: _EVERY] = [self] * len(clocked)
        return clocks

    def start(self) -> None:
        """Begin with a row."""
        self._last = perf_counter()

    def lap(self, stage: Stage) -> None:
        """Count what passed of a row since its start, or since its last lap."""
        now = perf_counter()
        self._seconds[stage] += (now - self._last) * _EVERY
        self._last = now

    def seconds(self) -> Seconds:
        """Return the seconds by stage; "other" is negative where the clocked rows happen to be slow ones."""
        named = sum(self._seconds.values())
        return self._seconds | {"other": perf_counter() - self._began - named}


def add(total: Seconds, seconds: Seconds) -> None:
    """Add the seconds of a batch to a sum."""
    for stage, some in seconds.items():
        total[stage] = total.get(stage, 0.0) + some
