"""`diagnose`: measure, name the limit, make the plan, prove it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any

import torch

from inkmill.config.results import results_folder
from inkmill.config.spec import Spec
from inkmill.data.sources import Source
from inkmill.diagnose.cold import read_all
from inkmill.diagnose.explore import Exploration, Explored
from inkmill.diagnose.facts import Facts, Settings
from inkmill.diagnose.fixed_batch import FixedBatch, fixed_batch
from inkmill.diagnose.look_around import measure_workers, room
from inkmill.diagnose.plan import Plan, words_of
from inkmill.diagnose.prove import Proved, prove, unproved
from inkmill.diagnose.quiet import own_core_seconds
from inkmill.diagnose.rig import StepHarness
from inkmill.diagnose.sample import Sampled, affordable, enough_to_try, open_whole, take_sample
from inkmill.diagnose.stages import StageTimes, measure_stages
from inkmill.diagnose.steps import settings_of, users_step
from inkmill.diagnose.storage import Storage, measure_storage
from inkmill.diagnose.trial import changed, open_warm, run_trial
from inkmill.diagnose.verdict import Evidence, Verdict, judge, saturated
from inkmill.diagnose.windows import Interval
from inkmill.machine import busy_core_seconds, cores, machine_stamp, memory_left
from inkmill.training.loop import TrainingLoop

Say = Callable[[str], None]

SECONDS = 105.0
"""All of it, starting up included; what began in time may end some seconds later."""

_PASS = 0.04  # of the time, for one pass over the sample by the user's workers
_THOROUGH_S = 30.0  # with less time, what needs processes of its own is assumed instead of measured
_EXPLORE_UNTIL = 0.92  # of the time: what is left, and a little more, is for trying the plan
_TRIALS_UNTIL = 0.85  # of the time: a second trial begins no later
_USUAL_EFFICIENCY = 0.85
_OF_RAM = 0.6  # a set up to this share of the free memory stays in the page cache


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        verdict: the answer.
        test, stages, storage: what was measured.
        facts, plan: what the plan rests on, and the plan.
        auto: the best settings that leave the step as it is: what `dataset.loader=auto` takes.
        measured: images a second of the trial; of the settings as they are where no plan was tried or held.
        now: of the settings as they are, as the plan was tried: read from the disk, where each epoch of the set is.
        others_cores: how many cores other programs used meanwhile; None: unknown.
        device: what was trained on.
        machine: its stamp.
        seconds: how long it all took.
        notes: what was not measured and why.
        phases: seconds of each part of it.
    """

    verdict: Verdict
    test: FixedBatch
    stages: StageTimes
    storage: Storage
    facts: Facts
    plan: Plan
    auto: Plan
    measured: Interval
    now: Interval
    others_cores: float | None
    device: torch.device
    machine: dict[str, Any]
    seconds: float
    notes: tuple[str, ...]
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, Any]:
        """The keys of the spec that the plan changes."""
        return self.plan.best.settings.overrides(self.plan.current.settings)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        storage = asdict(self.storage) | {"gain": self.storage.gain}
        windows = {name: _plain(getattr(self.test, name)) for name in ("step", "repeated", "cached", "warm", "cold")}
        return {
            "verdict": {"name": self.verdict.name, "sentence": self.verdict.sentence, "change": self.verdict.change},
            "stalls": {
                stall.name: _plain(stall.seconds) | {"share": stall.share, "state": stall.state}
                for stall in self.test.stalls
            },
            "seconds_a_step": windows | {"batch_size": self.test.batch_size},
            "stages": {name: _plain(time) for name, time in self.stages.times.items()},
            "storage": storage,
            "plan": {"settings": asdict(self.plan.best.settings), "change": self.overrides, "why": self.plan.why}
            | {"limit": self.plan.best.limit, "gain": self.plan.gain, "now": asdict(self.plan.current.settings)},
            "predicted_images_per_s": self.plan.best.images_per_s,
            "measured_images_per_s": self.measured.mean,
            "measured_now_images_per_s": self.now.mean,
            "machine": self.machine | {"cores_used_by_others": self.others_cores},
            "seconds": self.seconds,
            "phases": self.timings,
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
        seconds: how long it may take, about.
        began: `time.monotonic` when that time began; now, where None.

    Raises:
        InkmillError: no data, a device that is not there, settings that cannot be.
    """
    return _Run(spec, say, seconds, monotonic() if began is None else began).run(
        open_whole(spec, say) if source is None else source
    )


class _Run:
    def __init__(self, spec: Spec, say: Say, seconds: float, began: float) -> None:
        self.given = self.spec = spec
        self.say, self.seconds = say, seconds
        self.began = began
        self.machine = machine_stamp()
        self.notes: list[str] = []
        self.timings: dict[str, float] = {}
        self.compiled: TrainingLoop | None = None
        self.folder = results_folder(spec, "diagnose")

    def run(self, whole: Source) -> Diagnosis:
        seconds = self.seconds
        self._mark("start")
        with TemporaryDirectory(prefix="inkmill-diagnose-") as cached:
            self.cached = cached
            sampled = take_sample(self.spec, whole, self.say)
            storage = measure_storage(sampled.source, self.folder, min(3.0, 0.1 * seconds))
            sampled = affordable(sampled, self.spec, storage, _PASS * seconds)
            read_all(sampled.source, range(len(sampled.source)))
            self._mark("data")
            self.spec = self._with_scaled_keep(self.spec, sampled, self.spec.dataset.cache_gib * 2**30)
            rig = StepHarness(self.spec, sampled.prepared)
            self.say(f"{rig.note}; measuring with {len(sampled.source):,} of {len(whole):,} samples")
            try:
                stages = measure_stages(rig, min(3.0, 0.08 * seconds))
                self._mark("stages")
                test, others = self._test(rig)
                self._mark("fixed batch")
                facts, current = self._facts(rig, sampled, stages, test, storage)
                facts = replace(facts, free_cores=max(0.5, facts.cores - (others or 0.0)))
            finally:
                rig.close()
            self._mark("loaders alone")
            found = self._explore(rig, sampled, current, facts)
            facts, stages, self.compiled = found.facts, stages | found.times, found.compiled
            other_steps_ran = found.tried_steps
            self.notes += found.notes
            self._mark("other ways")
            del found  # which holds the compiled step too
            proved, now = self._prove(sampled, current, facts, test)
            self.notes += proved.notes
            self._mark("trial")
        evidence = Evidence(
            test,
            stages,
            storage,
            proved.plan,
            self.spec.train.num_epochs,
            facts.page_cached,
            facts.on_gpu,
            other_steps_ran,
            others,
            self._convert_command(),
        )
        everything = (*self.notes, *test.notes, *storage.notes)
        took = monotonic() - self.began
        return Diagnosis(
            judge(evidence),
            test,
            stages,
            storage,
            facts,
            proved.plan,
            proved.auto,
            proved.measured,
            now,
            others,
            rig.device,
            self.machine,
            took,
            everything,
            self.timings,
        )

    def _mark(self, phase: str) -> None:
        """Note how long a phase took that ends now."""
        self.timings[phase] = monotonic() - self.began - sum(self.timings.values())

    def _test(self, rig: StepHarness) -> tuple[FixedBatch, float | None]:
        """Run the fixed-batch test; also return how many cores other programs used meanwhile."""
        with open_warm(rig, 3 * _PASS * self.seconds) as loader:
            began, busy, own = perf_counter(), busy_core_seconds(), own_core_seconds()
            test = fixed_batch(rig, loader, min(9.0, 0.45 * self.seconds))
            took, busy_after = perf_counter() - began, busy_core_seconds()
            own = own_core_seconds() - own
            self.notes += loader.stats.notes
        if busy is None or busy_after is None:
            return test, None
        return test, max(0.0, (busy_after - busy - own) / took)

    def _facts(
        self, rig: StepHarness, sampled: Sampled, times: StageTimes, test: FixedBatch, storage: Storage
    ) -> tuple[Facts, Settings]:
        plan, resize = rig.plan, rig.plan.resize
        stages = times.as_stages(storage.wait_s, storage.fetch_s)
        if (
            rig.device.type == "cuda"
            and stages.augment_gpu is None
            and plan.pipeline is None
            and resize.mode != "height"
        ):
            stages = replace(stages, augment_gpu=0.0 if plan.numbers is None else None)
        current = settings_of(self.spec, rig)
        step = users_step(rig, test, current, stages)
        efficiency = _USUAL_EFFICIENCY
        page_cached = len(sampled.whole) * times.image_bytes < _OF_RAM * (memory_left() or 0)
        if self.seconds >= _THOROUGH_S:
            read_all(sampled.source, range(len(sampled.source)))  # the cold test dropped what it did not read again
            cold = storage.cold_s is not None and not page_cached
            efficiency, wait = measure_workers(plan, stages, 1.5, cold, rig.augment_on)
            if wait is not None:
                stages = replace(stages, wait=wait)
            elif cold:
                self.notes.append(
                    "how long several workers wait for the disk was not measured; one read's wait is assumed"
                )
            if cold:
                read_all(sampled.source, range(len(sampled.source)))
        elif cores() > 1:
            self.notes.append(f"how workers slow each other down was not measured; {efficiency:.0%} is assumed")
        width = resize.width if plan.bucket_widths is None else float(plan.bucket_widths.mean())
        places = room(self.given.dataset, rig.device)
        if resize.mode == "height":
            places.pop("gpu", None)
        facts = Facts(
            stages,
            (step,),
            on_gpu=rig.device.type == "cuda",
            cores=cores(),
            samples=len(sampled.whole),
            epochs=self.spec.train.num_epochs,
            picture_bytes=round(resize.height * width * resize.channels),
            ram_left=places["ram"],
            disk_left=places["disk"],
            gpu_left=places.get("gpu", 0),
            efficiency=efficiency,
            dali={current.decode_on: test.images_per_s} if current.loader == "dali" else {},  # at least that
            pipeline=plan.pipeline is not None,
            page_cached=page_cached,
        )
        return facts, current

    def _explore(self, rig: StepHarness, sampled: Sampled, current: Settings, facts: Facts) -> Explored:
        if not facts.on_gpu:
            return Explored(facts, StageTimes({}, 0.0))
        if self.seconds < _THOROUGH_S:
            note = f"other ways to do the step, to augment and to load were not tried: that takes {_THOROUGH_S:.0f} s"
            return Explored(facts, StageTimes({}, 0.0), notes=(f"{note} or more (--seconds)",))
        self.say("trying other ways to train")
        until = self.began + _EXPLORE_UNTIL * self.seconds
        return Exploration(self.spec, sampled, rig.plan, rig.device, current, facts, until).run()

    def _prove(self, sampled: Sampled, current: Settings, facts: Facts, test: FixedBatch) -> tuple[Proved, Interval]:
        """Make the plan and prove it; also return the speed as it is, measured as the plan's: cold, where it counts."""
        cold = not facts.page_cached and test.cold is not None
        now = test.cold_speed if cold else test.speed
        if not facts.on_gpu and saturated(test):
            notes = ["nothing was tried, for on a machine that others fill it would prove nothing"]
            return unproved(current, facts, now, "others fill this machine", notes), now

        def trial(plan: Plan) -> Interval:
            nonlocal sampled
            settings = plan.best.settings
            spec = changed(self.spec, overrides := settings.overrides(current))
            room_left = {"ram": facts.ram_left, "disk": facts.disk_left}.get(settings.cache, 0)
            if cold and settings.cache == "none":
                sampled = enough_to_try(sampled, spec)  # for later trials too
            spec = self._with_scaled_keep(spec, sampled, room_left)
            if overrides:
                self.say(f"trying the plan: {words_of(overrides)}")
            if not settings.compile:
                self.compiled = None  # gives the GPU's memory back
            seconds, warm_s = min(8.0, 0.1 * self.seconds), 3 * _PASS * self.seconds
            return run_trial(spec, sampled, seconds, warm_s, cold, self.compiled, self.notes.append)

        more_until = self.began + _TRIALS_UNTIL * self.seconds
        return prove(current, facts, now, trial, lambda: monotonic() < more_until), now

    def _with_scaled_keep(self, spec: Spec, sampled: Sampled, room_left: float) -> Spec:
        """Return the spec with room for that share of the sample's pictures of which the whole set's would be kept."""
        spec = spec.model_copy(deep=True)
        spec.dataset.cache_gib = max(1e-6, room_left / 2**30 * len(sampled.source) / len(sampled.whole))
        spec.dataset.cache_dir = self.cached
        return spec

    def _convert_command(self) -> str:
        sources = self.spec.dataset.sources("train")
        if len(sources) != 1:
            return "inkmill convert SOURCE DESTINATION --to shards, for each set"
        path = Path(sources[0].path)
        return f"inkmill convert {path} {path.parent / (path.name + '-shards')} --to shards"


def _plain(time: Interval | None) -> dict[str, Any]:
    return {} if time is None else {"mean": time.mean, "low": time.low, "high": time.high, "windows": time.count}
