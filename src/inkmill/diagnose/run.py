"""`diagnose`: measure, name the limit, make the plan, try it; all of it before one deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any

import torch

from inkmill.config.spec import Spec
from inkmill.data.loaders import loader_for
from inkmill.data.sources import Source
from inkmill.diagnose.explore import Exploration, Explored, settings_of, users_step
from inkmill.diagnose.fixed_batch import FixedBatch, fixed_batch
from inkmill.diagnose.harness import MOST_SAMPLES, Sampled, StepHarness, enough_to_try, open_whole, take_sample
from inkmill.diagnose.probe import (
    Reading,
    Times,
    costs_of,
    measure_efficiency,
    measure_reading,
    measure_stages,
    read_all,
    seconds_an_image,
)
from inkmill.diagnose.timing import Deadline, own_core_seconds
from inkmill.diagnose.validate_plan import Validated, changed, open_warm, run_trial, unchanged, validate_plan
from inkmill.diagnose.verdict import Evidence, Verdict, judge, saturated
from inkmill.machine import busy_core_seconds, cores, machine_stamp, memory_left
from inkmill.perf.plan import TuningPlan, words_of
from inkmill.perf.predict import Facts, ImageCost, Settings, Variant, look_up
from inkmill.perf.rules import EFFICIENCY, PAGE_CACHE_ROOM
from inkmill.perf.stats import Interval
from inkmill.training.loop import TrainingLoop

Say = Callable[[str], None]

SECONDS = 105.0
"""All of it, starting up included; what began in time may end some seconds later."""

_PASS = 0.04  # of the budget, for one pass over the sample by the user's workers
_THOROUGH_S = 30.0  # with less time, what needs processes of its own is assumed instead of measured
_EFFICIENCY_S = 5.0  # of starting processes and measuring them
_CACHED_GIB = 1e-6  # at least, of the sample's cache


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        verdict: the answer.
        test, times, reading: what was measured.
        facts, plan: what the plan rests on, and the plan.
        auto: the best settings that leave the step as it is: what `dataset.loader=auto` takes.
        measured: images a second of the trial; of the settings as they are where no plan was tried or held.
        tried: whether `measured` is that of a trial.
        now: images a second of the settings as they are, as the plan was tried: read from the disk, where each epoch
            of the set is.
        others_cores: how many cores other programs used meanwhile; None: unknown.
        device: what was trained on.
        machine: its stamp.
        seconds: how long it all took.
        notes: what was not measured and why.
        phases: seconds of each part of it.
    """

    verdict: Verdict
    test: FixedBatch
    times: Times
    reading: Reading
    facts: Facts
    plan: TuningPlan
    auto: TuningPlan
    measured: Interval
    tried: bool
    now: Interval
    others_cores: float | None
    device: torch.device
    machine: dict[str, Any]
    seconds: float
    notes: tuple[str, ...]
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, Any]:
        """The keys of the spec that the plan changes."""
        return self.plan.overrides

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        windows = {name: _plain(getattr(self.test, name)) for name in ("step", "memory", "warm", "cold")}
        return {
            "verdict": {"name": self.verdict.name, "sentence": self.verdict.sentence, "change": self.verdict.change},
            "stalls": {
                stall.name: _plain(stall.seconds) | {"share": stall.share, "state": stall.state}
                for stall in self.test.stalls
            },
            "seconds_a_step": windows | {"batch_size": self.test.batch_size},
            "stages": {name: _plain(time) for name, time in self.times.items()},
            "storage": asdict(self.reading),
            "plan": {"settings": self.plan.best.settings.keys(), "change": self.overrides, "why": self.plan.why}
            | {"limit": self.plan.best.limit, "gain": self.plan.gain, "now": self.plan.current.settings.keys()},
            "predicted_images_per_s": self.plan.best.images_per_s,
            "measured_images_per_s": self.measured.mean,
            "plan_was_tried": self.tried,
            "measured_now_images_per_s": self.now.mean,
            "machine": self.machine | {"cores_used_by_others": self.others_cores},
            "seconds": self.seconds,
            "phases": self.phases,
            "notes": list(self.notes),
        }


def diagnose(
    spec: Spec, say: Say, *, source: Source | None = None, seconds: float = SECONDS, began: float | None = None
) -> Diagnosis:
    """Find out what limits training with `spec` on this machine.

    Args:
        spec: the resolved spec.
        say: prints one line.
        source: all training samples, where they are not those that the spec names.
        seconds: the budget of the whole diagnosis. A floor is measured whatever it is: each stage over four batches,
            a round of the fixed-batch test. What there was no time for is among the notes.
        began: `time.monotonic` when that time began; now, where None.

    Raises:
        InkmillError: no data, a device that is not there, settings that are not possible.
    """
    deadline = Deadline(seconds, monotonic() if began is None else began)
    whole = open_whole(spec, say) if source is None else source
    return _Run(spec, say, deadline).run(whole)


class _Run:
    def __init__(self, spec: Spec, say: Say, deadline: Deadline) -> None:
        self.given = self.spec = spec
        self.say, self.deadline = say, deadline
        self.machine = machine_stamp()
        self.notes: list[str] = []
        self.phases: dict[str, float] = {}
        self.compiled: TrainingLoop | None = None

    def run(self, whole: Source) -> Diagnosis:
        self._mark("start")
        with TemporaryDirectory(prefix="inkmill-diagnose-") as self.cache_dir:
            # 1. A sample of the data that can be read a few times over.
            sampled, reading = self._sample(whole)
            harness = StepHarness(self.spec, sampled.prepared)
            self.say(f"{harness.note}; measuring with {len(sampled.source):,} of {len(whole):,} samples")
            try:
                # 2. What an image costs, and what a step waits for.
                on_gpu = harness.device.type == "cuda"
                times = measure_stages(harness.plan, on_gpu, self.deadline.part(0.08, 3.0))
                self._mark("stages")
                test, others = self._test(harness)
                self._mark("fixed batch")
                # 3. What the plan rests on.
                costs = costs_of(times, reading)
                facts, current = self._facts(harness, sampled, costs, test, others, reading.image_bytes)
            finally:
                harness.close()
            self._mark("workers")
            # 4. Other ways to train, and the plan, tried.
            found = self._explore(harness, sampled, current, facts)
            facts, times, self.compiled = found.facts, times | found.times, found.compiled
            tried_steps = found.tried_steps
            self.notes += found.notes
            del found  # which holds the compiled step too
            self._mark("other ways")
            validated, now = self._validate(sampled, current, facts, test)
            self._mark("trial")
        # 5. The verdict.
        evidence = Evidence(test, times, facts, validated.plan, tried_steps, others)
        notes = (*self.notes, *validated.notes, *test.notes, *reading.notes, *self.deadline.left_out)
        return Diagnosis(
            judge(evidence),
            test,
            times,
            reading,
            facts,
            validated.plan,
            validated.auto,
            validated.measured,
            validated.tried,
            now,
            others,
            harness.device,
            self.machine,
            self.deadline.passed,
            tuple(dict.fromkeys(notes)),
            self.phases,
        )

    def _mark(self, phase: str) -> None:
        """Note how long a phase took that ends now."""
        self.phases[phase] = self.deadline.passed - sum(self.phases.values())

    def _sample(self, whole: Source) -> tuple[Sampled, Reading]:
        """Take samples, measure how they are read, and leave so many that a pass over them is short."""
        sampled = take_sample(self.spec, whole, self.say)
        reading = measure_reading(sampled.source, self.deadline.part(0.1, 3.0))
        pass_s = _PASS * self.deadline.seconds
        workers = max(1, min(self.spec.dataset.workers, cores()))
        each = seconds_an_image(sampled.source, pass_s) / workers
        each = max(each, reading.cold_s or 0.0)
        sampled = sampled.cut(min(MOST_SAMPLES, max(2 * self.spec.dataset.batch_size, int(pass_s / each))))
        read_all(sampled.source, range(len(sampled.source)))
        self.spec = self._with_scaled_cache(self.spec, sampled, self.spec.dataset.cache_gib * 2**30)
        self._mark("data")
        return sampled, reading

    def _test(self, harness: StepHarness) -> tuple[FixedBatch, float | None]:
        """Run the fixed-batch test; also return how many cores other programs used meanwhile."""
        with open_warm(harness, self.deadline.part(3 * _PASS, 3 * _PASS * self.deadline.seconds)) as loader:
            began, busy, own = perf_counter(), busy_core_seconds(), own_core_seconds()
            test = fixed_batch(harness, loader, self.deadline)
            took, busy_after = perf_counter() - began, busy_core_seconds()
            own = own_core_seconds() - own
            self.notes += loader.stats.notes
        if busy is None or busy_after is None:
            return test, None
        return test, max(0.0, (busy_after - busy - own) / took)

    def _facts(
        self,
        harness: StepHarness,
        sampled: Sampled,
        costs: ImageCost,
        test: FixedBatch,
        others: float | None,
        image_bytes: float,
    ) -> tuple[Facts, Settings]:
        """Return what the plan rests on, and the settings as they are."""
        plan, current = harness.plan, settings_of(self.given, harness)
        found = look_up(plan, self.given.dataset, harness.device)
        # 1. The sample is a part: the sizes are those of the whole set.
        found["cache_bytes"] = round(found["cache_bytes"] / found["samples"] * len(sampled.whole))
        found["samples"] = len(sampled.whole)
        page_cached = len(sampled.whole) * image_bytes < PAGE_CACHE_ROOM * (memory_left() or 0)
        # 2. Where the GPU augments nothing, that costs it nothing.
        if found["gpu_can_augment"] and plan.numbers is None:
            costs = replace(costs, augment_gpu=0.0)
        # 3. How worker processes slow each other down: in processes of their own, where there is time.
        efficiency = EFFICIENCY
        if cores() > 1 and self.deadline.seconds < _THOROUGH_S:
            self.notes.append(f"how workers slow each other down was not measured; {efficiency:.0%} is assumed")
        elif cores() > 1 and self.deadline.allows("measuring how workers slow each other down", _EFFICIENCY_S, 0.7):
            read_all(sampled.source, range(len(sampled.source)))  # the cold test dropped what it did not read again
            efficiency = measure_efficiency(plan, harness.augment_on, costs, 1.5)
        step = users_step(harness, test, current, costs)
        rates: dict[Variant, float] = {}
        if current.cache == "none" and not loader_for(current.loader).processes:
            rates[current.loader, current.options] = test.throughput.mean  # at least that
        free = max(0.5, cores() - (others or 0.0))
        facts = Facts(
            costs,
            (step,),
            epochs=self.spec.train.num_epochs,
            efficiency=efficiency,
            rates=rates,
            free_cores=free,
            page_cached=page_cached,
            **found,
        )
        return facts, current

    def _explore(self, harness: StepHarness, sampled: Sampled, current: Settings, facts: Facts) -> Explored:
        if not facts.on_gpu:
            return Explored(facts, {})
        if self.deadline.seconds < _THOROUGH_S:
            note = f"other ways to do the step, to augment and to load were not tried: that takes {_THOROUGH_S:.0f} s"
            return Explored(facts, {}, notes=(f"{note} or more (--seconds)",))
        self.say("trying other ways to train")
        return Exploration(self.spec, sampled, harness.plan, harness.device, current, facts, self.deadline).run()

    def _validate(
        self, sampled: Sampled, current: Settings, facts: Facts, test: FixedBatch
    ) -> tuple[Validated, Interval]:
        """Make the plan and try it; also return the throughput as it is: read from the disk where the plan's is."""
        cold = not facts.page_cached and test.cold is not None
        now = test.cold_throughput if cold else test.throughput
        if not facts.on_gpu and saturated(test):
            notes = ["nothing was tried, for on a machine that others fill it would prove nothing"]
            return unchanged(current, facts, now, "others fill this machine", notes), now

        def trial(plan: TuningPlan) -> Interval | None:
            nonlocal sampled
            step_s = test.warm.mean * plan.best.settings.batch_size / test.batch_size
            if not self.deadline.allows("trying the plan", 4 * step_s):  # two steps to warm up, and two windows
                return None
            settings = plan.best.settings
            spec = changed(self.spec, plan.overrides)
            room = min(facts.room.get(settings.cache, 0), settings.cache_gib * 2**30)
            if cold and settings.cache == "none":
                sampled = enough_to_try(sampled, spec)
            spec = self._with_scaled_cache(spec, sampled, room)
            self.say(f"trying the plan: {words_of(plan.overrides)}")
            if settings.compile is not True:
                self.compiled = None  # gives the GPU's memory back
            seconds, warm_s = self.deadline.part(0.1, 8.0), 3 * _PASS * self.deadline.seconds
            return run_trial(spec, sampled, seconds, warm_s, cold, self.compiled, self.notes.append)

        return validate_plan(current, facts, now, trial), now

    def _with_scaled_cache(self, spec: Spec, sampled: Sampled, room: float) -> Spec:
        """Return the spec with room for that share of the sample's images of which the whole set's would be cached."""
        spec = spec.model_copy(deep=True)
        share = len(sampled.source) / len(sampled.whole)
        spec.dataset.cache_gib = max(_CACHED_GIB, room / 2**30 * share)
        spec.dataset.cache_dir = self.cache_dir
        return spec


def _plain(time: Interval | None) -> dict[str, float]:
    if time is None:
        return {}
    return {"mean": time.mean, "low": max(time.low, -1e9), "high": min(time.high, 1e9), "windows": time.count}
