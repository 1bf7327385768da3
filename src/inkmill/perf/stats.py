"""Measured times as intervals, and the test that tells a stall from noise.

Whether training waits is decided here for both who ask: the watch beside a running training and `inkmill diagnose`.
Intervals are Student's t over windows of measuring. Differences are taken round by round, which cancels what the
windows of one round have in common, such as another program that slows down the whole machine for a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from inkmill.perf.rules import ABSENT_BELOW, STALL_SHARE

StallName = Literal["launch", "copy", "prepare", "fetch"]
State = Literal["real", "absent", "unclear"]

# Two-sided 95 % quantiles of Student's t for 1, 2, 3 ... degrees of freedom; beyond the table 1.96 + 2.5 / df is
# within 0.002 of the truth.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval.

    Attributes:
        mean: the estimate.
        low, high: the ends; infinite where there is only one value.
        count: how many windows it rests on.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    def __add__(self, other: Interval) -> Interval:
        """Return the interval of the sum of two quantities that were measured separately."""
        half = math.hypot(self.half, other.half)  # independent errors add in squares
        mean = self.mean + other.mean
        return Interval(mean, mean - half, mean + half, min(self.count, other.count))


@dataclass(frozen=True)
class Stall:
    """What one cause adds to a step.

    Attributes:
        name: launch, copy, prepare or fetch.
        seconds: a step.
        share: of the real step, fetching from the disk left out; 0..1, above 1 for a fetch longer than the step.
        state: real, absent, or unclear.
    """

    name: StallName
    seconds: Interval
    share: float
    state: State


def stall_of(name: StallName, seconds: Interval, step_s: float) -> Stall:
    """Decide whether a stall is real.

    Args:
        name: its cause.
        seconds: what it adds to a step.
        step_s: the real step in seconds.
    """
    share, low, high = (value / step_s for value in (seconds.mean, seconds.low, seconds.high))
    if low > STALL_SHARE:
        return Stall(name, seconds, share, "real")
    # A stall that is small beside the step is absent, however few windows a slow step left time for.
    absent = share < STALL_SHARE or high < ABSENT_BELOW
    return Stall(name, seconds, share, "absent" if absent else "unclear")


def exactly(value: float) -> Interval:
    """Return the interval of a quantity that is known."""
    return Interval(value, value, value, 0)


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least one value with its 95 % interval."""
    mean, count = fmean(values), len(values)
    if count == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = t95(count - 1) * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def difference(later: Sequence[float], earlier: Sequence[float]) -> Interval:
    """Return how much larger `later` is than `earlier`, measured in the same rounds; spare rounds are left out."""
    return interval([one - other for one, other in zip(later, earlier, strict=False)])


def t95(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    return _T95[degrees - 1] if degrees <= len(_T95) else 1.96 + 2.5 / degrees
