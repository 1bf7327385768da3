"""Other ways than the user's: other steps, augmentation on the GPU, a compiled backbone, other loaders.

All of it is tried on the GPU at hand, never assumed. The cheap ones come first. What takes long to try is tried only
where its best imaginable outcome would change the plan: a GPU that augments for nothing helps nobody whose processes
can feed the step already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any

import torch

from inkmill.config.dataset import AugmentationSpec
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan
from inkmill.diagnose.fixed_batch import FixedBatch
from inkmill.diagnose.harness import Sampled, StepHarness
from inkmill.diagnose.probe import Times, measure_gpu_augmentation, measure_loader, variants
from inkmill.diagnose.timing import Deadline
from inkmill.errors import DataError, first_line
from inkmill.perf.plan import make_plan
from inkmill.perf.predict import STEP_KEYS, Facts, ImageCost, Settings, StepCost
from inkmill.perf.rules import WORTH
from inkmill.perf.watch import settings_in_use
from inkmill.training.loop import TrainingLoop

UNTIL = 0.92
"""Share of the budget: what is left, and a little more, is for trying the plan."""
AUGMENT_S = 30.0
"""Augmentation on the GPU is tried where so much time is left: compiling it takes most of that on two cores."""
COMPILE_S = 35.0
"""Likewise a compiled backbone: TAO's ResNet takes 24 to 40 s on 16 cores, 34 s on two."""
LOADER_S = 7.5
"""Likewise each variant of another loader."""

_LARGEST_BATCH = 4096
_FEWEST_STEPS = 20  # an epoch of fewer steps teaches little
_TRIALS = 3
_WINDOWS_S = 1.5


@dataclass(frozen=True)
class Explored:
    """What was found.

    Attributes:
        facts: those given, and what was measured.
        times: of the stages that were measured.
        tried_steps: whether another way to do the step was.
        notes: what was not tried and why.
        compiled: the loop of the compiled step, which the trial of the plan need not compile again.
    """

    facts: Facts
    times: Times
    tried_steps: bool = False
    notes: tuple[str, ...] = ()
    compiled: TrainingLoop | None = None


def could_gain(current: Settings, facts: Facts, imagined: Facts) -> bool:
    """Return whether the plan would be faster, by more than counts, if the facts were those imagined."""
    return make_plan(current, imagined).best.of_run > make_plan(current, facts).best.of_run * (1 + WORTH)


class Exploration:
    """Tries other ways on a GPU.

    Args:
        spec: the resolved spec.
        sampled: the data.
        plan: what the user's loader loads.
        device: the GPU.
        current: the user's settings.
        facts: what is known.
        deadline: of the diagnosis.
    """

    def __init__(
        self,
        spec: Spec,
        sampled: Sampled,
        plan: LoadPlan,
        device: torch.device,
        current: Settings,
        facts: Facts,
        deadline: Deadline,
    ) -> None:
        self.plan, self.device, self.current, self.facts, self.deadline = plan, device, current, facts, deadline
        self.steps = StepTrials(spec, sampled, deadline)
        self.times: Times = {}
        self.notes: list[str] = []
        self.tried: set[str] = set()

    def run(self) -> Explored:
        """Try what is worth it."""
        # 1. Other precisions and batch sizes take a second each.
        self.steps.try_cheap(self.facts.steps[0])
        self._take_steps()
        # 2. What takes long, twice: a compiled step may be too fast for what fed the other one.
        for _ in range(2):
            self._dear("dataset.augment_on=gpu", AUGMENT_S, self._with_free_augmentation(), self._augment_on_gpu)
            self._dear("train.compile=true", COMPILE_S, self._with_fast_compiled(), self._compile)
            takes = LOADER_S * len(variants())
            self._dear("another dataset.loader", takes, self._with_endless_loaders(self.facts), self._loaders)
        notes = dict.fromkeys((*self.steps.notes, *self.notes))
        return Explored(self.facts, self.times, bool(self.steps.steps), tuple(notes), self.steps.compiled)

    def _dear(self, name: str, seconds: float, imagined: Facts | None, work: Callable[[Facts], None]) -> None:
        """Do once what takes so many seconds, where it could change the plan and there is time."""
        if name in self.tried or imagined is None or not could_gain(self.current, self.facts, imagined):
            return
        if self.deadline.allows(f"trying {name}", seconds, UNTIL):
            self.tried.add(name)
            work(imagined)

    def _take_steps(self) -> None:
        self.facts = replace(self.facts, steps=(self.facts.steps[0], *self.steps.steps))

    def _with_free_augmentation(self) -> Facts | None:
        """With other loaders at their best too, for they need a GPU that augments."""
        if self.plan.numbers is None or not self.facts.gpu_can_augment or self.facts.costs.augment_gpu is not None:
            return None
        free = replace(self.facts, costs=replace(self.facts.costs, augment_gpu=0.0))
        return self._with_endless_loaders(free) or free

    def _augment_on_gpu(self, imagined: Facts) -> None:
        # A pass is compiled for each size of batch: for the plan's, so that its trial need not compile again.
        size = make_plan(self.current, imagined).best.settings.batch_size
        try:
            self.times = measure_gpu_augmentation(self.plan, self.device, size, _WINDOWS_S)
        except Exception as error:  # a compiler's errors share no base, and none is worth what was measured
            self.notes.append(f"dataset.augment_on=gpu does not run here: {first_line(error)}")
            return
        found = {name: time.mean for name, time in self.times.items()}
        gpu, host = found.get("augment (GPU)"), found.get("launch augment (GPU)", 0.0)
        self.facts = replace(self.facts, costs=replace(self.facts.costs, augment_gpu=gpu, augment_host=host))

    def _with_endless_loaders(self, facts: Facts) -> Facts | None:
        """With every loader that was not measured as fast as can be."""
        unknown = [variant for variant in variants() if variant not in self.facts.rates]
        if not unknown or not facts.gpu_can_augment:
            return None
        return replace(facts, rates={**facts.rates, **dict.fromkeys(unknown, inf)})

    def _loaders(self, imagined: Facts) -> None:
        cold = self.facts.costs.disk_wait > 0 and not self.facts.page_cached
        for variant in variants():
            rate, note = measure_loader(self.plan, variant, self.device, _WINDOWS_S, cold)
            if rate is not None:
                self.facts = replace(self.facts, rates={**self.facts.rates, variant: rate})
            self.notes += [note] if note else []

    def _with_fast_compiled(self) -> Facts | None:
        best = step_to_compile(self.facts.steps)
        if best is None:
            return None
        fast = replace(best, compile=True, seconds=best.seconds / 2, host=best.host / 4)
        return replace(self.facts, steps=(*self.facts.steps, fast))

    def _compile(self, imagined: Facts) -> None:
        self.steps.try_compiled(imagined.steps[-1])  # the one imagined
        self._take_steps()


class StepTrials:
    """Tries other ways to do the step on a GPU, one after the other, each built on the best so far.

    Args:
        spec: the resolved spec.
        sampled: the data.
        deadline: of the diagnosis.

    Attributes:
        steps: those that ran.
        notes: about those that did not.
        compiled: the loop of the compiled one.
    """

    def __init__(self, spec: Spec, sampled: Sampled, deadline: Deadline) -> None:
        self.spec, self.sampled, self.deadline = spec, sampled, deadline
        self.steps: list[StepCost] = []
        self.notes: list[str] = []
        self.memory = 0  # the peak of the last trial, in bytes
        self.compiled: TrainingLoop | None = None

    def try_cheap(self, users: StepCost) -> None:
        """Try bf16 and channels-last, then larger batches.

        A step that the host cannot launch fast enough gets no faster by bf16, but larger batches of it do: what counts
        there is the device's time alone.
        """
        best = users
        if users.precision == "fp32" and torch.cuda.is_bf16_supported():
            tried = self._tried(best, precision="bf16", channels_last=True)
            if tried is not None and tried.seconds * (1 + WORTH) < best.seconds:
                best = tried
        elif not users.channels_last:
            best = self._better(best, channels_last=True)
        while self.room_for(2 * best.batch_size):
            larger = self._better(best, batch_size=2 * best.batch_size)
            if larger is best:
                break
            best = larger

    def try_compiled(self, step: StepCost) -> None:
        """Try a step with a compiled backbone."""
        self._tried(step, compile=True)

    def room_for(self, batch_size: int) -> bool:
        """Whether a batch of this size makes sense and will fit, going by the last trial."""
        if batch_size > min(_LARGEST_BATCH, len(self.sampled.source)):
            return False
        if len(self.sampled.whole) < batch_size * _FEWEST_STEPS:
            return False
        return 2 * self.memory < 0.9 * torch.cuda.mem_get_info()[1]

    def _better(self, best: StepCost, **changes: object) -> StepCost:
        """Try `best` with changes; return that where it is faster, else `best`."""
        step = self._tried(best, **changes)
        if step is None or max(best.seconds, best.host) <= max(step.seconds, step.host) * (1 + WORTH):
            return best
        return step

    def _tried(self, best: StepCost, **changes: object) -> StepCost | None:
        if not self.deadline.allows("trying more precisions and batch sizes", 0.0, UNTIL):
            return None
        settings: dict[str, Any] = best.settings | changes
        spec = self.spec.model_copy(deep=True)
        spec.dataset.augmentation = AugmentationSpec()  # measured by itself, and compiled for each size
        for name, value in settings.items():
            setattr(spec.dataset if name == "batch_size" else spec.train, name, value)
        step = self._measured(spec)
        if step is not None:
            self.steps.append(step)
        return step

    def _measured(self, spec: Spec) -> StepCost | None:
        torch.cuda.reset_peak_memory_stats()
        try:
            harness = StepHarness(spec, self.sampled.prepared, batches=1)
            try:
                batch, size = next(harness.repeated()), spec.dataset.batch_size
                if spec.train.compile is True and len(batch) < size:
                    raise DataError("an image of its batch cannot be read, and short batches are not compiled")
                for _ in range(3):
                    harness.step(batch)
                if spec.train.compile is True and not harness.loop.step.compiled:
                    raise RuntimeError("its compilation failed")
                launch_s = harness.clock.launch_s(lambda: harness.step(batch))
                seconds = median(harness.clock.gpu_s(lambda: harness.step(batch), launch_s) for _ in range(_TRIALS))
                self.memory = torch.cuda.max_memory_allocated()
                compiled = spec.train.compile is True and self.spec.train.compile is not True
                self.compiled = harness.loop if compiled else None
                return _step(settings_of(spec, harness), seconds / size, launch_s / size)
            finally:
                harness.close()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            self.notes.append(f"dataset.batch_size={spec.dataset.batch_size} does not fit the GPU's memory")
            return None
        except Exception as error:  # a compiler's errors share no base, and none is worth what was measured
            if spec.train.compile is not True:
                raise
            self.notes.append(f"train.compile=true does not run here: {first_line(error)}")
            return None


def users_step(harness: StepHarness, test: FixedBatch, current: Settings, costs: ImageCost) -> StepCost:
    """Return the step of the user's settings, from the fixed-batch test; augmentation on the GPU is taken out."""
    size = test.batch_size
    seconds, host = test.step.mean / size, test.host_s / size
    if harness.augment_on == "gpu":
        seconds, host = seconds - (costs.augment_gpu or 0.0), host - costs.augment_host
    return _step(current, max(1e-9, seconds), max(1e-9, host))


def step_to_compile(steps: tuple[StepCost, ...]) -> StepCost | None:
    """Return the fastest step, which would gain most from being compiled; None where one is already."""
    if any(step.compile is True for step in steps):
        return None
    return min(steps, key=lambda step: max(step.seconds, step.host))


def settings_of(spec: Spec, harness: StepHarness) -> Settings:
    """Return what a spec's settings are on this machine, `auto` filled in."""
    precision = "fp32"
    if harness.device.type == "cuda":
        precision = spec.train.precision
        if precision == "auto":
            precision = "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return settings_in_use(spec, harness.augment_on, spec.dataset.workers, precision)


def _step(settings: Settings, seconds: float, host: float) -> StepCost:
    return StepCost(**{name: getattr(settings, name) for name in STEP_KEYS}, seconds=seconds, host=host)
