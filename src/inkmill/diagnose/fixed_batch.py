"""The fixed-batch test: the same step on four kinds of batches, and the stalls as their differences.

    repeated   one batch, on the device already: the speed of the step itself
    cached     real batches from host memory: adds the copy to the device
    warm       the real loader, its files in the page cache: adds making batches
    cold       the real loader, its files read from the disk: adds fetching

On a GPU a fifth kind, `queued`, is the repeated step issued behind a kernel that keeps the GPU busy: its kernels run
back to back, so what the repeated step takes longer is the host not issuing them fast enough (`launch`). On a CPU
`launch` is the time that the training thread was ready to run and had no core; it is taken out of the other figures,
or a busy machine would pass for a slow model. There is no `copy` on a CPU.

Where noise leaves open whether any stall is real, all is measured as long again, twice at most and for 20 s in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean
from time import perf_counter
from typing import Literal

import numpy as np

from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.diagnose.cold import drop, read_all
from inkmill.diagnose.quiet import wait_until_idle
from inkmill.diagnose.rig import StepHarness, for_ever
from inkmill.diagnose.windows import Interval, Rounds, difference, exactly, in_rounds, interval
from inkmill.machine import waited_for_core

StallName = Literal["launch", "copy", "prepare", "fetch"]

BAR = 0.02
"""A stall is real when its whole interval lies above this share of the step."""
CLEAR = 0.10
"""A stall that is not real is absent when its whole interval lies below this share; in between nothing can be told."""

_PARTS_OF_BUDGET = 40  # windows that fit the time for measuring
_SHORTEST_S, _LONGEST_S = 0.04, 0.6
_FEWEST_STEPS = 3
_TURNS = 3  # of measuring: a busy machine's noise shrinks with the windows, and most machines need one turn
_LONGEST_TEST_S = 20.0
_EPOCH = 1000  # whose first batches every window takes: each reads the same samples


@dataclass(frozen=True)
class Stall:
    """What one cause adds to a step.

    Attributes:
        name: launch, copy, prepare or fetch.
        seconds: a step.
        share: of the real step, fetching from the disk left out.
        state: real, absent, or unclear.
    """

    name: StallName
    seconds: Interval
    share: float
    state: Literal["real", "absent", "unclear"]


@dataclass(frozen=True)
class FixedBatch:
    """The outcome of the test; all times in seconds a step.

    Attributes:
        batch_size: images a step.
        step: the model's own step, without any stall.
        repeated, cached, warm, cold: as measured; cold is None where files could not be dropped.
        stalls: in the order of their making.
        issue_s: seconds of the host to issue a step to a GPU; 0 on a CPU.
        notes: what a reader of the figures must know.
    """

    batch_size: int
    step: Interval
    repeated: Interval
    cached: Interval
    warm: Interval
    cold: Interval | None
    stalls: tuple[Stall, ...]
    issue_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def images_per_s(self) -> float:
        """Speed of training, warm."""
        return self.batch_size / self.warm.mean

    @property
    def speed(self) -> Interval:
        """The same with its interval."""
        return self._speed(self.warm)

    @property
    def cold_speed(self) -> Interval:
        """Speed of training that reads from the disk; warm, where that was not measured."""
        return self._speed(self.cold or self.warm)

    def _speed(self, step: Interval) -> Interval:
        size = self.batch_size
        high = size / step.low if step.low > 0 else inf
        return Interval(size / step.mean, max(0.0, size / step.high), high, step.count)

    def stall(self, name: StallName) -> Stall | None:
        """Return one stall, None where it was not measured."""
        return next((stall for stall in self.stalls if stall.name == name), None)


def fixed_batch(rig: StepHarness, loader: DeviceLoader, seconds: float) -> FixedBatch:
    """Run the test.

    Args:
        rig: the step.
        loader: the real loader, warm: at least one batch was taken from it.
        seconds: time for the windows; warming up comes on top.
    """
    return _Test(rig, loader, seconds).run()


@dataclass
class _Feed:
    """Windows of one kind, with what else was seen in each: waiting for a core and for data, seconds a step."""

    take: Callable[[], tuple[float, float, float]]
    delayed: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def window(self) -> float:
        step, delayed, waited = self.take()
        self.delayed.append(delayed)
        self.waited.append(waited)
        return step


class _Test:
    def __init__(self, rig: StepHarness, loader: DeviceLoader, seconds: float) -> None:
        self.rig, self.loader, self.seconds = rig, loader, seconds
        self.on_gpu = rig.device.type == "cuda"
        self.window_s = min(max(seconds / _PARTS_OF_BUDGET, _SHORTEST_S), _LONGEST_S)
        self.makers = rig.spec.dataset.workers
        self.batch = next(rig.repeated())
        self.notes: list[str] = []
        self.issue_s = 0.0

    def run(self) -> FixedBatch:
        self.steps = self._calibrate()
        self.rows = self._rows_of_a_window()
        cached = for_ever(self.rig.cached)
        feeds = {
            "repeated": _Feed(lambda: self._window(iter(lambda: self.batch, None), self.steps)),
            "cached": _Feed(lambda: self._window(cached, self.steps)),
            "warm": _Feed(self._warm),
        }
        if not self.on_gpu and waited_for_core() is None:
            self.notes.append("this system does not tell how long a thread waits for a core: launch was not measured")
        if self._can_be_cold():
            feeds["cold"] = _Feed(self._cold)
        if self.on_gpu:
            feeds["queued"] = _Feed(self._queued)
        windows = {name: feed.window for name, feed in feeds.items()}
        times: dict[str, list[float]] = {name: [] for name in windows}
        began = perf_counter()
        for turn in range(1, _TURNS + 1):
            for name, values in in_rounds(windows, Rounds(self.seconds)).items():
                times[name] += values
            found = self._result(times, feeds)
            if not undecided(found) or (perf_counter() - began) * (turn + 1) / turn > _LONGEST_TEST_S:
                break
        return replace(found, notes=tuple(self.notes))

    def _calibrate(self) -> int:
        for _ in range(3):  # the first step of a shape allocates, chooses kernels, perhaps compiles
            self.rig.step(self.batch)
        if self.on_gpu:
            self.issue_s = self.rig.clock.issue_s(lambda: self.rig.step(self.batch))
        took, _, _ = self._window(iter(lambda: self.batch, None), _FEWEST_STEPS)
        return max(_FEWEST_STEPS, round(self.window_s / took))

    def _window(self, batches: Iterator[Batch], steps: int) -> tuple[float, float, float]:
        """Return seconds, seconds without a core, and seconds without data, all a step; at least one step is done."""
        rig, stats = self.rig, self.loader.stats
        rig.settle()
        core, waited, began, done = waited_for_core() or 0.0, stats.waited_s, perf_counter(), 0
        while done < steps and (not done or perf_counter() - began < 4 * self.window_s):
            rig.step(next(batches))
            done += 1
        rig.settle()
        took = perf_counter() - began
        return took / done, ((waited_for_core() or 0.0) - core) / done, (stats.waited_s - waited) / done

    def _warm(self) -> tuple[float, float, float]:
        """Start the epoch anew: what was made ahead during other windows must not count as made in this one."""
        self.loader.set_epoch(_EPOCH + 1)  # another one, or it would go on where it stands
        self.loader.set_epoch(_EPOCH)
        batches = for_ever(self.loader)
        until = perf_counter() + 2 * self.window_s
        for _ in range(self.makers + 1):  # the first ones come together, one from each worker
            self.rig.step(next(batches))
            if perf_counter() > until:
                break
        found = self._window(batches, max(self.steps, 2 * self.makers))
        wait_until_idle()
        return found

    def _cold(self) -> tuple[float, float, float]:
        self.loader.release()  # workers have the files mapped, and may be reading ahead
        drop(self.loader.plan.source, self.rows)
        found = self._warm()
        read_all(self.loader.plan.source, self.rows)
        return found

    def _rows_of_a_window(self) -> list[int]:
        """Return the samples that a window may read, those made ahead included."""
        order = self.loader.plan.order()
        batches = min(len(order), max(self.steps, 2 * self.makers) + 8 * (self.makers + 1))
        found: list[int] = np.concatenate([order.samples(_EPOCH, number) for number in range(batches)]).tolist()
        return found

    def _can_be_cold(self) -> bool:
        """Try it once; cached pictures are read from no file."""
        if self.rig.spec.dataset.cache != "none":
            self.notes.append("pictures are kept, so files are read in the first epoch only: no cold figures")
            return False
        self.loader.release()
        dropped = drop(self.loader.plan.source, self.rows)
        read_all(self.loader.plan.source, self.rows)
        if not dropped.cold:
            self.notes.append(f"no cold figures: {dropped.why_not}")
        return dropped.cold

    def _queued(self) -> tuple[float, float, float]:
        times = [self.rig.clock.gpu_s(lambda: self.rig.step(self.batch), self.issue_s) for _ in range(_FEWEST_STEPS)]
        return fmean(times), 0.0, 0.0

    def _result(self, times: dict[str, list[float]], feeds: dict[str, _Feed]) -> FixedBatch:
        clean = times if self.on_gpu else self._without_delays(times, feeds)
        total = fmean(times["warm"])
        loading = difference(clean["warm"], clean["cached"])
        waits = fmean(feeds["warm"].waited)
        # Where data were there in time and the step still took longer, the loader's processes took the host's cores.
        crowded = self.on_gpu and waits < loading.mean / 2
        if self.on_gpu:
            step = interval(times["queued"])
            launch = difference(times["repeated"], times["queued"])
        else:
            step, launch = interval(clean["repeated"]), interval(feeds["repeated"].delayed)
        if crowded:
            launch, loading = launch + loading, exactly(0.0)
        found = {"launch": launch, "copy": difference(clean["cached"], clean["repeated"]), "prepare": loading}
        if not self.on_gpu:
            del found["copy"]
        if "cold" in times:
            found["fetch"] = difference(times["cold"], times["warm"])
        if not self.on_gpu and waited_for_core() is None:
            del found["launch"]
        stalls = tuple(Stall(name, time, time.mean / total, _state(time, total)) for name, time in found.items())  # type: ignore[arg-type]
        means = {name: interval(values) for name, values in times.items()}
        kinds = means["repeated"], means["cached"], means["warm"], means.get("cold")
        return FixedBatch(self.rig.spec.dataset.batch_size, step, *kinds, stalls, self.issue_s)

    def _without_delays(self, times: dict[str, list[float]], feeds: dict[str, _Feed]) -> dict[str, list[float]]:
        """Take out waiting for a core; where workers run beside the step, no more of it than the step alone had."""
        alone = feeds["repeated"].delayed
        clean = {}
        for name, values in times.items():
            delays = feeds[name].delayed
            if self.makers and name in ("warm", "cold"):
                delays = [min(pair) for pair in zip(delays, alone, strict=True)]
            clean[name] = [value - delay for value, delay in zip(values, delays, strict=True)]
        return clean


def undecided(test: FixedBatch) -> bool:
    """Return whether no stall is real and one that loading causes may be."""
    states = {stall.name: stall.state for stall in test.stalls}
    return "real" not in states.values() and "unclear" in (states | {"launch": "absent"}).values()


def _state(time: Interval, total: float) -> Literal["real", "absent", "unclear"]:
    if time.low > BAR * total:
        return "real"
    return "absent" if time.high < CLEAR * total else "unclear"
