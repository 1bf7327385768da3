"""A measured time is an interval, not a number: windows of several configurations in turn, and what they tell.

The windows of the configurations compared are interleaved (ABAB...), so that a machine that slows down meanwhile slows
all of them alike. Differences are taken round by round, which cancels what a round's windows have in common; intervals
are Student's t over the rounds. Measuring goes on until the intervals are narrow or the time is up: it never stops
because a difference looks good, only because it is known well enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from time import monotonic

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

    def scaled(self, factor: float) -> Interval:
        """Return the interval of `factor` times the quantity; factor >= 0."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor, self.count)

    def __add__(self, other: Interval) -> Interval:
        """Return the interval of the sum of two quantities measured apart."""
        half = math.hypot(self.half, other.half)
        mean = self.mean + other.mean
        return Interval(mean, mean - half, mean + half, min(self.count, other.count))


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


def steady(values: Sequence[float]) -> list[float]:
    """Return the values without those that took three times the middle one: there something else had the core."""
    most = 3 * median(values)
    return [value for value in values if value <= most]


def difference(later: Sequence[float], earlier: Sequence[float]) -> Interval:
    """Return how much larger `later` is than `earlier`, measured in the same rounds; spare rounds are left out."""
    return interval([one - other for one, other in zip(later, earlier, strict=False)])


def t95(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    return _T95[degrees - 1] if degrees <= len(_T95) else 1.96 + 2.5 / degrees


@dataclass(frozen=True, slots=True)
class Rounds:
    """When measuring in rounds stops.

    Attributes:
        seconds: no round begins later than this after the first, once `least` are done.
        least, most: rounds.
        narrow: goal for the half-widths of all differences to the first configuration, as a share of its mean.
    """

    seconds: float
    least: int = 6
    most: int = 40
    narrow: float = 0.005


def in_rounds(windows: Mapping[str, Callable[[], float]], rounds: Rounds) -> dict[str, list[float]]:
    """Measure one window of each configuration, and again, until enough is known.

    Args:
        windows: by name, what measures one window and returns the quantity; the first is what others are compared with.
        rounds: when to stop.

    Returns:
        By name, one value a round.
    """
    values: dict[str, list[float]] = {name: [] for name in windows}
    until = monotonic() + rounds.seconds
    for number in range(rounds.most):
        slowest = 0.0
        for name, window in windows.items():
            began = monotonic()
            values[name].append(window())
            slowest += monotonic() - began
        if number + 1 < rounds.least:
            continue
        if monotonic() + slowest > until or _narrow(values, rounds.narrow):
            break
    return values


def _narrow(values: Mapping[str, list[float]], share: float) -> bool:
    first, *others = values.values()
    goal = share * fmean(first)
    return interval(first).half <= goal and all(difference(other, first).half <= goal for other in others)
