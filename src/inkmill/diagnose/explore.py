"""Other ways than the user's: other steps, augmentation on the GPU, a compiled backbone, DALI.

The cheap ones are tried first. What takes long to try is tried only where its best imaginable outcome would change the
plan: a GPU that augments for nothing helps nobody whose processes can feed the step already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import torch

from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan
from inkmill.data.loaders.dali import has_dali
from inkmill.diagnose.facts import Facts, Settings
from inkmill.diagnose.look_around import measure_dali
from inkmill.diagnose.plan import WORTH, make_plan
from inkmill.diagnose.sample import Sampled
from inkmill.diagnose.stages import StageTimes, measure_gpu_augmentation
from inkmill.diagnose.steps import COMPILE_S, StepTrials, step_to_compile
from inkmill.errors import first_line
from inkmill.training.loop import TrainingLoop

AUGMENT_S = 30.0
"""Augmentation on the GPU is tried where so much time is left: compiling it takes most of that on two cores."""
DALI_S = 15.0
"""Likewise DALI, twice: decoding on the CPU and on the GPU."""

_WINDOWS_S = 1.5


@dataclass(frozen=True)
class Explored:
    """What came of it.

    Attributes:
        facts: those given, and what was found.
        times: of the stages that were measured.
        tried_steps: whether another way to do the step was.
        notes: what was not tried and why.
        compiled: the loop of the compiled step, which the trial of the plan need not compile again.
    """

    facts: Facts
    times: StageTimes
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
        until: `time.monotonic` when nothing new may begin.
    """

    def __init__(
        self,
        spec: Spec,
        sampled: Sampled,
        plan: LoadPlan,
        device: torch.device,
        current: Settings,
        facts: Facts,
        until: float,
    ) -> None:
        self.plan, self.device, self.current, self.facts, self.until = plan, device, current, facts, until
        self.steps = StepTrials(spec, sampled, until)
        self.times = StageTimes({}, 0.0)
        self.notes: list[str] = []
        self.tried: set[str] = set()

    def run(self) -> Explored:
        """Try what is worth it."""
        self.steps.try_cheap(self.facts.steps[0])
        self._take_steps()
        for _ in range(2):  # a compiled step may be too fast for what fed the other
            self._dear("dataset.augment_on=gpu", AUGMENT_S, self._with_free_augmentation(), self._augment_on_gpu)
            self._dear("train.compile=true", COMPILE_S, self._with_fast_compiled(), self._compile)
            self._dear("dataset.loader=dali", DALI_S, self._with_endless_dali(self.facts), self._dali)
        notes = dict.fromkeys((*self.steps.notes, *self.notes))
        return Explored(self.facts, self.times, bool(self.steps.steps), tuple(notes), self.steps.compiled)

    def _dear(self, name: str, seconds: float, imagined: Facts | None, work: Callable[[Facts], None]) -> None:
        """Do once what takes so many seconds, where it could change the plan and there is time."""
        if name in self.tried or imagined is None or not could_gain(self.current, self.facts, imagined):
            return
        if monotonic() + seconds > self.until:
            self.notes.append(f"{name} was not tried: it takes longer than the time that was left (see --seconds)")
            return
        self.tried.add(name)
        work(imagined)

    def _take_steps(self) -> None:
        self.facts = replace(self.facts, steps=(self.facts.steps[0], *self.steps.steps))

    def _with_free_augmentation(self) -> Facts | None:
        """With DALI at its best too, for it needs a GPU that augments."""
        cannot = self.plan.numbers is None or self.plan.pipeline is not None or self.plan.resize.mode == "height"
        if cannot or self.facts.stages.augment_gpu is not None:
            return None
        free = replace(self.facts, stages=replace(self.facts.stages, augment_gpu=0.0))
        return self._with_endless_dali(free) or free

    def _augment_on_gpu(self, imagined: Facts) -> None:
        # A pass is compiled for each size of batch: for the plan's, so that its trial need not compile again.
        size = make_plan(self.current, imagined).best.settings.batch_size
        try:
            self.times = measure_gpu_augmentation(self.plan, self.device, size, _WINDOWS_S)
        except Exception as error:  # a compiler's errors share no base, and none is worth what was measured
            self.notes.append(f"dataset.augment_on=gpu does not run here: {first_line(error)}")
            return
        found = {name: time.mean for name, time in self.times.times.items()}
        stages = replace(
            self.facts.stages, augment_gpu=found.get("augment (GPU)"), augment_host=found.get("issue augment", 0.0)
        )
        self.facts = replace(self.facts, stages=stages)

    def _with_endless_dali(self, facts: Facts) -> Facts | None:
        return replace(facts, dali={**facts.dali, "mixed": float("inf")}) if has_dali() else None

    def _dali(self, imagined: Facts) -> None:
        found, notes = measure_dali(self.plan, self.device, _WINDOWS_S)
        self.facts = replace(self.facts, dali={**self.facts.dali, **found})
        self.notes += notes

    def _with_fast_compiled(self) -> Facts | None:
        best = step_to_compile(self.facts.steps)
        if best is None:
            return None
        fast = replace(best, compile=True, seconds=best.seconds / 2, host=best.host / 4)
        return replace(self.facts, steps=(*self.facts.steps, fast))

    def _compile(self, imagined: Facts) -> None:
        self.steps.try_compiled(imagined.steps[-1])  # the one imagined
        self._take_steps()
