"""Where those who make batches spend their time, so that a loader that is too slow can say what would help.

Clocking every picture would slow down what is measured. So of the stages that go picture by picture (read, decode,
fit) the time of all rows is clocked as a whole, and shared out as one picture in sixteen took it. What goes batch by
batch is clocked by itself. What is left is "other": order, labels, laying out. Seconds are those on the wall: a worker
that waits for the disk is reading, one that waits for a core is at whatever it wants the core for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, Self

Stage = Literal["read", "decode", "resize", "cache", "augment", "other"]
STAGES: tuple[Stage, ...] = ("read", "decode", "resize", "cache", "augment", "other")

_EVERY = 16

Seconds = dict[str, float]
"""Seconds by stage."""


class StageClock:
    """Clocks the making of one batch, which begins with the clock.

    Args:
        number: of the batch; other rows are clocked in other batches.
    """

    __slots__ = ("_began", "_last", "_number", "_rows_s", "_shares", "_whole")

    def __init__(self, number: int) -> None:
        self._number = number
        self._whole: Seconds = dict.fromkeys(STAGES, 0.0)
        self._shares: Seconds = dict.fromkeys(STAGES, 0.0)
        self._rows_s = 0.0
        self._began = self._last = perf_counter()

    @contextmanager
    def whole(self, stage: Stage) -> Iterator[None]:
        """Clock a piece of work on the whole batch."""
        began = perf_counter()
        yield
        self._whole[stage] += perf_counter() - began

    @contextmanager
    def rows(self, count: int) -> Iterator[list[Self | None]]:
        """Clock the work on all rows, and give for each the clock, where it is to be clocked by itself, or None."""
        clocks: list[Self | None] = [None] * count
        clocked = range(self._number % min(_EVERY, count or 1), count, _EVERY)  # at least one
        clocks[clocked.start :: _EVERY] = [self] * len(clocked)
        began = perf_counter()
        yield clocks
        self._rows_s += perf_counter() - began

    def start(self) -> None:
        """Begin with a row."""
        self._last = perf_counter()

    def lap(self, stage: Stage) -> None:
        """Count what passed of a row since its start, or since its last lap."""
        now = perf_counter()
        self._shares[stage] += now - self._last
        self._last = now

    def seconds(self) -> Seconds:
        """Return the seconds by stage, which add up to those since the clock was made."""
        clocked = sum(self._shares.values())
        seconds = dict(self._whole)
        if clocked:
            for stage, share in self._shares.items():
                seconds[stage] += self._rows_s * share / clocked
        seconds["other"] += perf_counter() - self._began - sum(seconds.values())
        return seconds


def add(total: Seconds, seconds: Seconds) -> None:
    """Add the seconds of a batch to a sum."""
    for stage, some in seconds.items():
        total[stage] = total.get(stage, 0.0) + some
