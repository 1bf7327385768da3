"""Other ways to do the step: bf16, larger batches, a compiled backbone. Tried on the GPU at hand, never assumed."""

from __future__ import annotations

from statistics import median
from time import monotonic, process_time
from typing import Any

import torch

from inkmill.config.dataset import AugmentationSpec
from inkmill.config.spec import Spec
from inkmill.diagnose.facts import Settings, Stages, Step
from inkmill.diagnose.fixed_batch import FixedBatch
from inkmill.diagnose.rig import StepHarness
from inkmill.diagnose.sample import Sampled
from inkmill.errors import DataError, first_line
from inkmill.training.loop import TrainingLoop

COMPILE_S = 35.0
"""A compiled backbone is tried where so much time is left: TAO's ResNet takes 24 to 40 s on 16 cores, 34 s on two."""

_WORTH = 1.03
_LARGEST_BATCH = 4096
_FEWEST_STEPS = 20  # an epoch of fewer steps teaches little
_CPU_STEPS = 3
_TRIALS = 3


def users_step(rig: StepHarness, test: FixedBatch, current: Settings, stages: Stages) -> Step:
    """Return the step of the user's settings, from the fixed-batch test; augmentation on the GPU is taken out."""
    size = test.batch_size
    batch = next(rig.repeated())
    if rig.device.type == "cuda":
        seconds, host = test.step.mean / size, test.issue_s / size
        if batch.augmentation is not None:
            seconds, host = seconds - (stages.augment_gpu or 0.0), host - stages.augment_host
        return _step(current, max(1e-9, seconds), max(1e-9, host))
    began = process_time()
    for _ in range(_CPU_STEPS):
        rig.step(batch)
    return _step(current, test.repeated.mean / size, (process_time() - began) / _CPU_STEPS / size)


def step_to_compile(steps: tuple[Step, ...]) -> Step | None:
    """Return the fastest step, which would gain most from being compiled; None where one is already."""
    if any(step.compile for step in steps):
        return None
    return min(steps, key=lambda step: max(step.seconds, step.host))


class StepTrials:
    """Tries other ways to do the step on a GPU, one after the other, each built on the best so far.

    Args:
        spec: the resolved spec.
        sampled: the data.
        until: `time.monotonic` when nothing new may begin.

    Attributes:
        steps: those that ran.
        notes: about those that did not.
        compiled: the loop of the compiled one.
    """

    def __init__(self, spec: Spec, sampled: Sampled, until: float) -> None:
        self.spec, self.sampled, self.until = spec, sampled, until
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.memory = 0  # the peak of the last trial, in bytes
        self.compiled: TrainingLoop | None = None

    def try_cheap(self, users: Step) -> None:
        """Try bf16 and channels-last, then larger batches.

        A step that the host cannot issue fast enough gets no faster by bf16, but larger batches of it do: what counts
        there is the device's time alone.
        """
        best = users
        if users.precision == "fp32" and torch.cuda.is_bf16_supported():
            tried = self._tried(best, precision="bf16", channels_last=True)
            if tried is not None and tried.seconds * _WORTH < best.seconds:
                best = tried
        elif not users.channels_last:
            best = self._better(best, channels_last=True)
        while self.room_for(2 * best.batch_size):
            larger = self._better(best, batch_size=2 * best.batch_size)
            if larger is best:
                break
            best = larger

    def try_compiled(self, step: Step) -> None:
        """Try a step with a compiled backbone."""
        self._tried(step, compile=True)

    def room_for(self, batch_size: int) -> bool:
        """Whether a batch of this size makes sense and will fit, going by the last trial."""
        if batch_size > min(_LARGEST_BATCH, len(self.sampled.source)):
            return False
        if len(self.sampled.whole) < batch_size * _FEWEST_STEPS:
            return False
        return 2 * self.memory < 0.9 * torch.cuda.mem_get_info()[1]

    def _better(self, best: Step, **changes: object) -> Step:
        """Try `best` with changes; return that where it is faster, else `best`."""
        step = self._tried(best, **changes)
        if step is None or max(best.seconds, best.host) <= max(step.seconds, step.host) * _WORTH:
            return best
        return step

    def _tried(self, best: Step, **changes: object) -> Step | None:
        if monotonic() > self.until:
            self.notes.append("not all precisions and batch sizes were tried: the time was up (see --seconds)")
            return None
        settings: dict[str, Any] = {"batch_size": best.batch_size, "precision": best.precision}
        settings |= {"compile": best.compile, "channels_last": best.channels_last} | changes
        spec = self.spec.model_copy(deep=True)
        spec.dataset.augmentation = AugmentationSpec()  # measured by itself, and compiled for each size
        spec.dataset.batch_size = settings["batch_size"]
        for name in ("precision", "compile", "channels_last"):
            setattr(spec.train, name, settings[name])
        step = self._measured(spec)
        if step is not None:
            self.steps.append(step)
        return step

    def _measured(self, spec: Spec) -> Step | None:
        torch.cuda.reset_peak_memory_stats()
        try:
            rig = StepHarness(spec, self.sampled.prepared, batches=1)
            try:
                batch, size = next(rig.repeated()), spec.dataset.batch_size
                if spec.train.compile and len(batch) < size:
                    raise DataError("a picture of its batch cannot be read, and short batches are not compiled")
                for _ in range(3):
                    rig.step(batch)
                issue_s = rig.clock.issue_s(lambda: rig.step(batch))
                seconds = median(rig.clock.gpu_s(lambda: rig.step(batch), issue_s) for _ in range(_TRIALS))
                self.memory = torch.cuda.max_memory_allocated()
                self.compiled = rig.loop if spec.train.compile and not self.spec.train.compile else None
                return _step(settings_of(spec, rig), seconds / size, issue_s / size)
            finally:
                rig.close()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            self.notes.append(f"dataset.batch_size={spec.dataset.batch_size} does not fit the GPU's memory")
            return None
        except Exception as error:  # a compiler's errors share no base, and none is worth what was measured
            if not spec.train.compile:
                raise
            self.notes.append(f"train.compile=true does not run here: {first_line(error)}")
            return None


def settings_of(spec: Spec, rig: StepHarness) -> Settings:
    """Return what a spec's settings come to on this machine, `auto` filled in."""
    dataset, train = spec.dataset, spec.train
    precision = "fp32"
    if rig.device.type == "cuda":
        precision = train.precision
        if precision == "auto":
            precision = "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return Settings(
        loader="workers" if dataset.loader == "auto" else dataset.loader,
        workers=dataset.workers,
        cache=dataset.cache,
        augment_on="gpu" if rig.augment_on == "gpu" else "cpu",
        decode_on=dataset.decode_on,
        batch_size=dataset.batch_size,
        precision=precision,
        compile=train.compile,
        channels_last=train.channels_last,
    )


def _step(settings: Settings, seconds: float, host: float) -> Step:
    return Step(
        settings.batch_size, settings.precision, settings.compile, settings.channels_last, seconds=seconds, host=host
    )
