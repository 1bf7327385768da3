"""Watches, while training runs, whether it waits for its data, and says once what would help.

What the first seconds of a run cost (processes start, kernels are chosen) and what an epoch costs that fills a store is
not what the rest will cost, so neither is judged. After that each minute is; more than a twentieth of it is worth a
line, once for each cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inkmill.data.loaders.plan import Seconds, Stats, add
from inkmill.perf.advice import Advice, Waiting

WARM_UP_S = 10.0
WINDOW_S = 60.0
SHORTEST_RUN_S = 10.0
WORTH_A_LINE = 0.05

Advise = Callable[[Waiting], Advice]


@dataclass(slots=True)
class _Span:
    """Some time of training, and what of it went where."""

    seconds: float = 0.0
    stalled_s: float = 0.0
    copy_s: float = 0.0
    stages: Seconds = field(default_factory=dict)

    def add(self, other: _Span) -> None:
        self.seconds += other.seconds
        self.stalled_s += other.stalled_s
        self.copy_s += other.copy_s
        add(self.stages, other.stages)

    def since(self, before: _Span) -> _Span:
        stages = {stage: some - before.stages.get(stage, 0.0) for stage, some in self.stages.items()}
        return _Span(
            self.seconds - before.seconds, self.stalled_s - before.stalled_s, self.copy_s - before.copy_s, stages
        )

    @property
    def share(self) -> float:
        return min(1.0, self.stalled_s / self.seconds) if self.seconds > 0 else 0.0

    def waiting(self, makers: int) -> Waiting:
        busy = sum(self.stages.values()) / max(1e-9, self.seconds * max(1, makers))
        return Waiting(self.share, busy, self.copy_s / max(1e-9, self.stalled_s), dict(self.stages))


class WaitingWatch:
    """Sums up the epochs of a run.

    Args:
        stats: of the training loader.
        makers: how many make batches at a time.
        advise: turns what was measured into a line.
    """

    def __init__(self, stats: Stats, makers: int, advise: Advise) -> None:
        self._stats, self._makers, self._advise = stats, makers, advise
        self._before: _Span | None = None  # the clocks when they were last read; None between epochs
        self._judged_from: float | None = None  # None: before the first epoch
        self._counts = True
        self._window, self._judged, self._all = _Span(), _Span(), _Span()
        self._told: dict[str, Advice] = {}

    def epoch_starts(self, now: float, counts: bool = True) -> None:
        """Begin to look.

        Args:
            now: seconds of any steady clock.
            counts: whether this epoch is like the others.
        """
        self._judged_from = now + WARM_UP_S if self._judged_from is None else self._judged_from
        self._before, self._counts = self._read(now), counts

    def look(self, now: float) -> str | None:
        """Return the line that is due, or None."""
        if self._before is None:
            return None
        read = self._read(now)
        span, begun = read.since(self._before), self._before.seconds
        self._before = read
        self._all.add(span)
        assert self._judged_from is not None
        if not self._counts or begun < self._judged_from:
            return None
        self._judged.add(span)
        self._window.add(span)
        if self._window.seconds < WINDOW_S:
            return None
        window, self._window = self._window, _Span()
        return self._line(window)

    def epoch_ends(self, now: float) -> str | None:
        """Look a last time until the next epoch starts."""
        line = self.look(now)
        self._before = None
        return line

    def summary(self) -> str | None:
        """Return what is to be said at the end of the run, or None where it hardly waited."""
        if self._judged.seconds < SHORTEST_RUN_S or self._judged.share <= WORTH_A_LINE:
            return None
        return f"over the run, {self._advise(self._judged.waiting(self._makers)).line}"

    def as_dict(self) -> dict[str, Any]:
        """Return the figures of the whole run, start and filling of stores included, and what was advised."""
        return {
            "seconds": round(self._all.stalled_s, 3),
            "share": round(self._all.share, 4),
            "stages": {stage: round(seconds, 3) for stage, seconds in self._all.stages.items()},
            "images": self._stats.images,
            "advice": [advice.line for advice in self._told.values()],
        }

    def _read(self, now: float) -> _Span:
        stats = self._stats
        return _Span(now, stats.stalled_s, stats.copy_s, dict(stats.stages))

    def _line(self, window: _Span) -> str | None:
        if window.share <= WORTH_A_LINE:
            return None
        advice = self._advise(window.waiting(self._makers))
        if advice.cause in self._told:
            return None
        self._told[advice.cause] = advice
        return advice.line
