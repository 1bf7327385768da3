"""How a diagnosis measures time: one deadline for all of it, windows taken in rounds, the clock of a GPU.

The windows of the configurations compared are interleaved (ABAB...), so that a machine that slows down meanwhile slows
all of them alike. Measuring ends when the intervals are narrow or the time is up: it never stops because a difference
looks good, only because it is known well enough.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

import torch

from inkmill.perf.stats import difference, interval

_LAUNCHES = 5
_GPU_HZ = 2e9  # about; the kernel that keeps the GPU busy need only last long enough
_IDLE_LOOK_S, _IDLE_BELOW, _IDLE_PATIENCE_S = 0.01, 0.3, 1.0  # seconds, share of a core, seconds


class Deadline:
    """The end of a diagnosis, which every loop that measures asks.

    Args:
        seconds: the budget of the whole diagnosis.
        began: `time.monotonic` when it began; now, where None.

    Attributes:
        left_out: what was not measured for want of time, one sentence each: nothing is left out silently.
    """

    def __init__(self, seconds: float, began: float | None = None) -> None:
        self.seconds = seconds
        self.began = monotonic() if began is None else began
        self.left_out: list[str] = []

    @property
    def passed(self) -> float:
        """Seconds since it began."""
        return monotonic() - self.began

    def left(self, until: float = 1.0) -> float:
        """Return the seconds until a share of the budget is used up; negative once it is."""
        return until * self.seconds - self.passed

    def part(self, share: float, most: float, until: float = 1.0) -> float:
        """Return how long one measurement may take: a share of the budget, at most `most`, no longer than is left."""
        return max(0.0, min(share * self.seconds, most, self.left(until)))

    def allows(self, what: str, seconds: float, until: float = 1.0) -> bool:
        """Return whether there is time for what takes so many seconds; where not, note that it was left out."""
        if self.left(until) >= seconds:
            return True
        note = f"{what} was left out: it takes about {seconds:.0f} s, and there was less time left (see --seconds)"
        if note not in self.left_out:
            self.left_out.append(note)
        return False


@dataclass(frozen=True, slots=True)
class Rounds:
    """When measuring in rounds stops.

    Attributes:
        seconds: no round begins that would end later than this after the first, once `floor` are done.
        floor: rounds that are measured whatever the time: fewer would tell nothing.
        least, most: rounds, as far as there is time.
        narrow: goal for the half-widths of all differences to the first configuration, as a share of its mean.
    """

    seconds: float
    floor: int = 2
    least: int = 6
    most: int = 40
    narrow: float = 0.005


def measure_in_rounds(windows: Mapping[str, Callable[[], float]], rounds: Rounds) -> dict[str, list[float]]:
    """Measure one window of each configuration, and again, until enough is known.

    Args:
        windows: by name, what measures one window and returns the quantity; the first is what others are compared with.
        rounds: when to stop.

    Returns:
        By name, one value a round.
    """
    values: dict[str, list[float]] = {name: [] for name in windows}
    began = monotonic()
    for number in range(1, rounds.most + 1):
        for name, window in windows.items():
            values[name].append(window())
        took = monotonic() - began
        if number >= rounds.floor and took * (number + 1) / number > rounds.seconds:
            break
        if number >= max(rounds.least, rounds.floor) and _narrow(values, rounds.narrow):
            break
    return values


def _narrow(values: Mapping[str, list[float]], share: float) -> bool:
    first, *others = values.values()
    goal = share * fmean(first)
    return interval(first).half <= goal and all(difference(other, first).half <= goal for other in others)


def without_outliers(values: Sequence[float]) -> list[float]:
    """Return the values without those above three times the median: there another program had the core."""
    most = 3 * median(values)
    return [value for value in values if value <= most]


@dataclass(frozen=True)
class GpuClock:
    """Takes times of a device.

    Attributes:
        device: where the work runs; of a CPU only `settle` makes sense, and does nothing.
    """

    device: torch.device

    def settle(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def launch_s(self, work: Callable[[], Any]) -> float:
        """Return the seconds that the host needs to launch some work of the GPU, whose queue is empty before."""
        times = []
        for _ in range(_LAUNCHES):
            self.settle()
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        self.settle()
        return median(times)

    def gpu_s(self, work: Callable[[], Any], launch_s: float) -> float:
        """Return the seconds of work whose kernels wait in the queue already when the GPU gets to them.

        One piece of work at a time: the queue holds about a thousand kernels, and then the host would wait too.
        """
        self.settle()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.device):
            # 1. A kernel keeps the GPU busy for longer than launching takes. 2. Meanwhile all work is queued.
            torch.cuda._sleep(int(_GPU_HZ * 2 * launch_s))  # type: ignore[no-untyped-call]
            began.record()
            work()
            ended.record()
        self.settle()
        return float(began.elapsed_time(ended)) / 1e3


def wait_until_idle() -> None:
    """Return when this process and its children use next to no CPU, or after a second.

    Then loaders have prefetched all they may, and one configuration's work is not another's noise.
    """
    until = monotonic() + _IDLE_PATIENCE_S
    used = _used()
    while monotonic() < until:
        began = monotonic()
        sleep(_IDLE_LOOK_S)
        before, used = used, _used()
        if used - before < _IDLE_BELOW * (monotonic() - began):
            return


def own_core_seconds() -> float:
    """Return the CPU seconds of this process and its children, also of those that have ended."""
    times = os.times()
    return _used() + times.children_user + times.children_system


def _used() -> float:
    """Return the CPU seconds of this process and of its children that still run."""
    return process_time() + sum(_of_process(child.pid) for child in multiprocessing.active_children() if child.pid)


def _of_process(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):  # it ended, or this is no Linux
        return 0.0
