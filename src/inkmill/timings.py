"""Where the time of a validation goes: phases that follow one another, so that they add up to the whole.

A GPU works while Python goes on, so the seconds are those that Python spent: what a GPU does in the meantime costs
nothing, and the time until its result is there is the model's (`forward`), not that of whoever looks at it first.
"""

from __future__ import annotations

from time import perf_counter

TIMINGS = ("loader", "forward", "decode", "metric", "ranks")
"""Waiting for batches; the model; between classes and texts, both ways; scoring; waiting for the other GPUs."""


class Timings:
    """A stopwatch whose laps have names.

    Attributes:
        seconds: by phase.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(TIMINGS, 0.0)
        self._last = perf_counter()

    def start(self) -> None:
        """Begin, or continue; what passed since the last lap belongs to no phase."""
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """Count what passed since the last lap to a phase of `TIMINGS`."""
        now = perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def shares(self) -> dict[str, tuple[float, float]]:
        """Return seconds and share, 0..1, of each phase that there was; `ranks` only where there are several."""
        whole = self.total or 1.0
        return {name: (some, some / whole) for name, some in self.seconds.items() if some or name != "ranks"}

    def summary(self) -> str:
        """Return the total and the shares, the largest first."""
        shares = sorted(self.shares().items(), key=lambda pair: -pair[1][1])
        return f"{self.total:.1f} s: " + ", ".join(f"{name} {share:.0%}" for name, (_, share) in shares)

    def as_dict(self) -> dict[str, float]:
        """Return the seconds by phase and their `total`, to the microsecond."""
        seconds = {name: round(some, 6) for name, (some, _) in self.shares().items()}
        return seconds | {"total": round(self.total, 6)}
