"""The fixed-batch test: the same step on several kinds of batches, and the stalls that they tell.

    repeated   one batch, on the device already (GPU only)
    memory     real batches from host memory: adds the copy to the device
    warm       the real loader, its files in the page cache: adds assembling batches
    cold       the real loader, its files read from the disk: adds fetching
    queued     the repeated step, launched behind a kernel that keeps the GPU busy (GPU only)

On a GPU stalls are differences: its steps vary by less than a hundredth. The kernels of `queued` run back to back, so
what `repeated` takes longer is the host not launching them fast enough (`launch`).

On a CPU a step varies by a tenth, which would hide any stall of a slow model. So there the time is taken that training
stood waiting for the loader, which is what the watch beside a running training takes too; only where the loader's
processes slow the step down beyond doubt does that count as well. `launch` is the time that the training thread was
ready to run and had no core; it is taken out of the other figures, or a busy machine would pass for a slow model.

Where noise leaves open whether any stall is real, all is measured again, as long as the deadline allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean
from time import perf_counter, process_time

import numpy as np

from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.diagnose.harness import StepHarness, for_ever
from inkmill.diagnose.probe import drop, read_all
from inkmill.diagnose.timing import Deadline, Rounds, measure_in_rounds, wait_until_idle
from inkmill.machine import waited_for_core
from inkmill.perf.rules import STALL_SHARE
from inkmill.perf.stats import Interval, Stall, StallName, difference, exactly, interval, stall_of

_SHARE, _LONGEST_S, _UNTIL = 0.45, 9.0, 0.6  # of the budget for one turn; seconds; of the budget for all turns
_PARTS_OF_TURN = 40  # windows that fit one turn
_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 0.04, 0.6
_STEPS = 3  # in a window and to warm up, as far as steps are quick
_TURNS = 3  # a busy machine's noise shrinks with the windows, and most machines need one turn
_EPOCH = 1000  # whose first batches every window takes: each reads the same samples


@dataclass(frozen=True)
class FixedBatch:
    """The outcome of the test; all times in seconds a step.

    Attributes:
        batch_size: images a step.
        step: the model's own step, without any stall.
        memory, warm, cold: as measured; cold is None where files could not be dropped from the page cache.
        stalls: in the order of a batch's way.
        host_s: CPU seconds of the training process: to launch a step on a GPU, or to do it on a CPU.
        notes: what a reader of the figures must know.
    """

    batch_size: int
    step: Interval
    memory: Interval
    warm: Interval
    cold: Interval | None
    stalls: tuple[Stall, ...]
    host_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def throughput(self) -> Interval:
        """Images a second, warm."""
        return self._throughput(self.warm)

    @property
    def cold_throughput(self) -> Interval:
        """Images a second of training that reads from the disk; warm, where that was not measured."""
        return self._throughput(self.cold or self.warm)

    def _throughput(self, step: Interval) -> Interval:
        size = self.batch_size
        high = size / step.low if step.low > 0 else inf
        return Interval(size / step.mean, max(0.0, size / step.high), high, step.count)

    def stall(self, name: StallName) -> Stall | None:
        """Return one stall, None where it was not measured."""
        return next((stall for stall in self.stalls if stall.name == name), None)


def undecided(test: FixedBatch) -> bool:
    """Return whether no stall is real and one that loading causes may be."""
    states = {stall.name: stall.state for stall in test.stalls}
    return "real" not in states.values() and "unclear" in (states | {"launch": "absent"}).values()


def fixed_batch(harness: StepHarness, loader: DeviceLoader, deadline: Deadline) -> FixedBatch:
    """Run the test.

    Args:
        harness: the step.
        loader: the real loader, warm: at least one batch was taken from it.
        deadline: of the diagnosis; one round is measured whatever it says.
    """
    return _Test(harness, loader, deadline).run()


@dataclass(frozen=True)
class _Window:
    """Seconds a step: on the clock, without a core, waiting for data, and of the process's CPU."""

    seconds: float
    delayed: float = 0.0
    waited: float = 0.0
    cpu: float = 0.0


@dataclass
class _Kind:
    """One kind of batches: how a window of it is measured, and all windows so far."""

    take: Callable[[], _Window]
    windows: list[_Window] = field(default_factory=list)

    def window(self) -> float:
        self.windows.append(self.take())
        return self.windows[-1].seconds

    def seconds(self) -> list[float]:
        return [window.seconds for window in self.windows]

    def running(self) -> list[float]:
        """Seconds without those in which there was no core."""
        return [window.seconds - window.delayed for window in self.windows]

    def waiting(self, inline: bool) -> list[float]:
        """Seconds waiting for data; where the thread itself assembles batches, its share without a core left out."""
        return [
            window.waited * (1 - min(1.0, window.delayed / window.seconds) if inline else 1.0)
            for window in self.windows
        ]


class _Test:
    def __init__(self, harness: StepHarness, loader: DeviceLoader, deadline: Deadline) -> None:
        self.harness, self.loader, self.deadline = harness, loader, deadline
        self.on_gpu = harness.device.type == "cuda"
        self.seconds = deadline.part(_SHARE, _LONGEST_S)
        self.window_s = min(max(self.seconds / _PARTS_OF_TURN, _SHORTEST_WINDOW_S), _LONGEST_WINDOW_S)
        self.workers = harness.spec.dataset.workers
        self.batch = next(harness.repeated())
        self.notes: list[str] = []
        self.launch_s = 0.0
        self.step_s = 0.0  # of the batch on the device, about

    def run(self) -> FixedBatch:
        # 1. How many steps make a window, and which samples they read.
        self.steps = self._calibrate()
        self.rows = self._rows_of_a_window()
        # 2. The kinds of batches, the one that others are compared with first.
        memory = for_ever(self.harness.memory)
        kinds: dict[str, _Kind] = {}
        if self.on_gpu:
            kinds["repeated"] = _Kind(lambda: self._window(iter(lambda: self.batch, None), self.steps))
        kinds["memory"] = _Kind(lambda: self._window(memory, self.steps))
        kinds["warm"] = _Kind(self._warm)
        # A round takes a step in memory, and two of each other kind: the first one of those is not measured.
        if self.deadline.allows("reading from the disk", 10 * self.step_s, _UNTIL) and self._can_be_cold():
            kinds["cold"] = _Kind(self._cold)
        if self.on_gpu:
            kinds["queued"] = _Kind(self._queued)
        elif waited_for_core() is None:
            self.notes.append("this system does not tell how long a thread waits for a core: launch was not measured")
        # 3. Rounds of windows, and more of them where noise leaves the answer open.
        began = perf_counter()
        floor = 2 if self.deadline.allows("a second round of the fixed-batch test", 6 * self.step_s, _UNTIL) else 1
        for turn in range(1, _TURNS + 1):
            measure_in_rounds({name: kind.window for name, kind in kinds.items()}, Rounds(self.seconds, floor))
            found = self._result(kinds)
            if not undecided(found):
                break
            if self.deadline.left(_UNTIL) < (perf_counter() - began) / turn:
                self.notes.append("a stall is unclear, and there was no time to measure it again (see --seconds)")
                break
        return replace(found, notes=tuple(self.notes))

    def _calibrate(self) -> int:
        """Warm up, and return how many steps fill a window."""
        until = perf_counter() + 2 * self.window_s
        for _ in range(_STEPS):  # the first step of a shape allocates, chooses kernels, perhaps compiles
            began = perf_counter()
            self.harness.step(self.batch)
            self.harness.settle()
            self.step_s = perf_counter() - began
            if perf_counter() > until and not self.on_gpu:  # a GPU's third step captures it
                break
        if self.on_gpu:
            self.launch_s = self.harness.clock.launch_s(lambda: self.harness.step(self.batch))
        if self.step_s > 4 * self.window_s:  # too slow to do it once more for nothing
            return 1
        self.step_s = self._window(iter(lambda: self.batch, None), _STEPS).seconds
        return max(_STEPS, round(self.window_s / self.step_s))

    def _window(self, batches: Iterator[Batch], steps: int) -> _Window:
        """Do some steps, fewer where they are slow, but at least one."""
        harness, stats = self.harness, self.loader.stats
        harness.settle()
        core, waited, cpu = waited_for_core() or 0.0, stats.waited_s, process_time()
        began, done = perf_counter(), 0
        while done < steps and (not done or perf_counter() - began < 4 * self.window_s):
            harness.step(next(batches))
            done += 1
        harness.settle()
        took = perf_counter() - began
        delayed, cpu = (waited_for_core() or 0.0) - core, process_time() - cpu
        return _Window(took / done, delayed / done, (stats.waited_s - waited) / done, cpu / done)

    def _warm(self) -> _Window:
        """Start the epoch again: what was prefetched during other windows must not count as assembled in this one."""
        self.loader.set_epoch(_EPOCH + 1)  # another one, or it would resume where it stands
        self.loader.set_epoch(_EPOCH)
        batches = for_ever(self.loader)
        until = perf_counter() + 2 * self.window_s
        for _ in range(self.workers + 1):  # the first ones come together, one from each worker
            self.harness.step(next(batches))
            if perf_counter() > until:
                break
        found = self._window(batches, max(self.steps, 2 * self.workers))
        wait_until_idle()
        return found

    def _cold(self) -> _Window:
        self.loader.release()  # workers have the files mapped, and may be reading ahead
        drop(self.loader.plan.source, self.rows)
        found = self._warm()
        read_all(self.loader.plan.source, self.rows)
        return found

    def _queued(self) -> _Window:
        times = [self.harness.clock.gpu_s(lambda: self.harness.step(self.batch), self.launch_s) for _ in range(_STEPS)]
        return _Window(fmean(times))

    def _rows_of_a_window(self) -> list[int]:
        """Return the samples that a window may read, those prefetched included."""
        order = self.loader.plan.order()
        batches = min(len(order), max(self.steps, 2 * self.workers) + 8 * (self.workers + 1))
        found: list[int] = np.concatenate([order.samples(_EPOCH, number) for number in range(batches)]).tolist()
        return found

    def _can_be_cold(self) -> bool:
        """Return whether files can be dropped from the page cache; cached images are read from no file."""
        if self.harness.spec.dataset.cache != "none":
            self.notes.append("images are cached, so files are read in the first epoch only: no cold figures")
            return False
        self.loader.release()
        cold = drop(self.loader.plan.source, self.rows)
        read_all(self.loader.plan.source, self.rows)
        return cold

    def _result(self, kinds: dict[str, _Kind]) -> FixedBatch:
        """Return the stalls that the windows so far tell."""
        total = fmean(kinds["warm"].seconds())
        step, seconds, host_s = self._on_gpu(kinds) if self.on_gpu else self._on_cpu(kinds)
        stalls = tuple(stall_of(name, time, total) for name, time in seconds.items())
        means = {name: interval(kind.seconds()) for name, kind in kinds.items()}
        size = self.harness.spec.dataset.batch_size
        return FixedBatch(size, step, means["memory"], means["warm"], means.get("cold"), stalls, host_s)

    def _on_gpu(self, kinds: dict[str, _Kind]) -> tuple[Interval, dict[StallName, Interval], float]:
        repeated, memory, warm = (kinds[name].seconds() for name in ("repeated", "memory", "warm"))
        launch, loading = difference(repeated, kinds["queued"].seconds()), difference(warm, memory)
        # Where data were there in time and the step still took longer, the loader's processes took the host's cores.
        if fmean(window.waited for window in kinds["warm"].windows) < loading.mean / 2:
            launch, loading = launch + loading, exactly(0.0)
        found: dict[StallName, Interval] = {"launch": launch, "copy": difference(memory, repeated), "prepare": loading}
        if "cold" in kinds:
            found["fetch"] = difference(kinds["cold"].seconds(), warm)
        return interval(kinds["queued"].seconds()), found, self.launch_s

    def _on_cpu(self, kinds: dict[str, _Kind]) -> tuple[Interval, dict[StallName, Interval], float]:
        memory, warm, inline = kinds["memory"], kinds["warm"], self.workers == 0
        waits = warm.waiting(inline)
        prepare = interval(waits)
        if not inline:  # do the workers slow the step down? Only what is beyond doubt counts.
            busy = [seconds - wait for seconds, wait in zip(warm.seconds(), waits, strict=True)]
            crowding = difference(busy, memory.seconds())
            if crowding.low > STALL_SHARE * fmean(warm.seconds()):
                prepare = prepare + crowding
        found: dict[StallName, Interval] = {"prepare": prepare}
        if waited_for_core() is not None:
            # Beside workers only the step alone tells: what they delay it is theirs. Else every window does.
            windows = [window for kind in kinds.values() if inline or kind is memory for window in kind.windows]
            total = fmean(warm.seconds())
            found = {"launch": interval([total * window.delayed / window.seconds for window in windows]), **found}
        if "cold" in kinds:
            found["fetch"] = difference(kinds["cold"].waiting(inline), waits)
        return interval(memory.running()), found, fmean(window.cpu for window in memory.windows)
