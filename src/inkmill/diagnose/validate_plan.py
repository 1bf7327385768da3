"""The plan, tried: training itself with its settings, for a few seconds.

What does not run makes room for the next best, and what is not faster is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic, perf_counter
from typing import Any

import torch

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.diagnose.harness import Sampled, StepHarness, enough_to_try, for_ever
from inkmill.diagnose.probe import drop
from inkmill.diagnose.timing import Rounds, measure_in_rounds
from inkmill.errors import first_line
from inkmill.perf.plan import TuningPlan, make_plan, words_of
from inkmill.perf.predict import Facts, Settings
from inkmill.perf.stats import Interval, interval
from inkmill.training.loop import TrainingLoop

_MOST_REFUSED = 3  # plans that do not run; each trial takes seconds
_WARM_STEPS = 3
_PARTS = 8  # windows of a trial

Trial = Callable[[TuningPlan], Interval | None]


@dataclass(frozen=True)
class Validated:
    """What became of the plan.

    Attributes:
        plan: that which held or was not tried, or the settings as they are.
        auto: the best settings that leave the step as it is: what `dataset.loader=auto` takes.
        measured: images a second of the trial; of the settings as they are where no plan was tried or held.
        tried: whether `measured` is that of a trial.
        notes: about plans that did not hold.
    """

    plan: TuningPlan
    auto: TuningPlan
    measured: Interval
    tried: bool
    notes: tuple[str, ...] = ()


def validate_plan(current: Settings, facts: Facts, now: Interval, trial: Trial) -> Validated:
    """Make the plan and try it.

    Args:
        current: the settings as they are.
        facts: what is known.
        now: images a second with them.
        trial: trains with a plan for a moment and returns the images a second; None where there is no time.
    """
    refused: list[Settings] = []
    notes: list[str] = []
    while True:
        # 1. The best plan of those that were not refused. Settings that stay were measured already.
        plan, auto = _plans(current, facts, refused)
        if plan.best is plan.current or len(refused) == _MOST_REFUSED:
            why = "nothing better runs here" if refused else plan.why
            return unchanged(current, facts, now, why, notes, refused)
        # 2. Train with it.
        try:
            measured = trial(plan)
        except Exception as error:  # a compiler's and a loader's errors share no base; none is worth the diagnosis
            refused.append(plan.best.settings)
            if isinstance(error, torch.OutOfMemoryError):  # with images from elsewhere the step is no smaller
                facts = _without_step(facts, plan.best.settings)
            notes.append(f"{words_of(plan.overrides)} does not run here: {first_line(error)}")
            continue
        # 3. Keep it where it is not slower than what there is.
        if measured is None:
            return Validated(plan, _stays(auto, "the plan was not tried"), now, False, tuple(notes))
        if measured.high < now.mean:
            notes.append(
                f"the plan was taken back: tried, it made {measured.mean:,.0f} images/s, "
                f"and the settings as they are make {now.mean:,.0f}"
            )
            return unchanged(current, facts, now, "the settings as they are win", notes, refused)
        return Validated(plan, auto, measured, True, tuple(notes))


def unchanged(
    current: Settings, facts: Facts, now: Interval, why: str, notes: list[str], refused: Collection[Settings] = ()
) -> Validated:
    """Return that the settings stay as they are, for dataset.loader=auto too."""
    plan, auto = (_stays(one, why) for one in _plans(current, facts, refused))
    return Validated(plan, auto, now, False, tuple(notes))


def _stays(plan: TuningPlan, why: str) -> TuningPlan:
    return replace(plan, best=plan.current, why=why, change={}, change_gain=1.0, step_gain=1.0)


def _without_step(facts: Facts, settings: Settings) -> Facts:
    users, *others = facts.steps
    return replace(facts, steps=(users, *(step for step in others if replace(settings, **step.settings) != settings)))


def _plans(current: Settings, facts: Facts, refused: Collection[Settings]) -> tuple[TuningPlan, TuningPlan]:
    """Return the plan, and the one that leaves the step and the user's limit for caches as they are."""
    of_step = replace(facts, steps=facts.steps[:1])
    return make_plan(current, facts, refused), make_plan(current, of_step, refused, fixed=("cache_gib",))


# The trial -----------------------------------------------------------------------------------------------------------


def changed(spec: Spec, overrides: dict[str, Any]) -> Spec:
    """Return the spec with some keys changed, the way a command line changes them."""
    given = [(f"{name}", value) for name, value in spec.model_dump(exclude_defaults=True).items()]
    return load_spec(None, [*given, *overrides.items()])


def open_warm(harness: StepHarness, seconds: float) -> DeviceLoader:
    """Open the real loader and take so many batches that its cache is full, if the time allows."""
    loader = harness.open_real()
    try:
        until, fills = monotonic() + seconds, harness.spec.dataset.cache not in ("none", "gpu")
        while True:
            for number, _ in enumerate(loader):
                if monotonic() > until or (not fills and number >= harness.spec.dataset.workers):
                    return loader
            if fills or monotonic() > until:
                return loader
    except BaseException:
        loader.close()
        raise


def run_trial(
    spec: Spec,
    sampled: Sampled,
    seconds: float,
    warm_s: float,
    cold: bool = False,
    loop: TrainingLoop | None = None,
    say: Callable[[str], None] = print,
) -> Interval:
    """Train for about `seconds`, after at most `warm_s` of filling the cache, and return the images a second.

    Args:
        spec: the settings.
        sampled: in place of the whole set.
        seconds, warm_s: see above; two windows of a step each are measured at least.
        cold: read from the disk in every epoch, as a set does that is larger than the page cache; left out where an
            epoch of the sample has fewer batches than are assembled at a time.
        loop: see StepHarness.
        say: gets a sentence where it was not cold after all.

    Raises:
        InkmillError: these settings cannot run here.
    """
    cold = cold and spec.dataset.cache == "none"
    if cold:
        sampled = enough_to_try(sampled, spec)
    harness = StepHarness(spec, sampled.prepared, batches=1, loop=loop)
    try:
        with open_warm(harness, warm_s) if spec.dataset.cache != "none" else harness.open_real() as loader:
            if cold and len(loader) <= _at_a_time(loader):
                say(
                    f"the trial read from memory, not from the disk: the sample has {len(loader)} batches"
                    f" of {spec.dataset.batch_size}, and {_at_a_time(loader)} are assembled at a time"
                )
                cold = False
            part = seconds / _PARTS
            window = _cold_window(harness, loader, part) if cold else _window(harness, loader, part)
            rounds = Rounds(seconds, floor=3 if cold else 2, least=3 if cold else 6, narrow=0.01)
            return interval(measure_in_rounds({"images/s": window}, rounds)["images/s"])
    finally:
        harness.close()


def _window(harness: StepHarness, loader: DeviceLoader, seconds: float) -> Callable[[], float]:
    """Windows follow each other without a pause, so nothing is prefetched between them."""
    batches = for_ever(loader)  # an epoch of its own: what was prefetched of others must not count
    _warm_up(harness, batches, 2 * harness.spec.dataset.workers, 2 * seconds)
    return lambda: _throughput(harness, batches, seconds)


def _warm_up(harness: StepHarness, batches: Iterator[Batch], steps: int, seconds: float) -> None:
    """Do a step, in which what is compiled is compiled, then some more, up to so many, for so long.

    The others use up what was prefetched meanwhile, which must not count as assembled in a window.
    """
    until, least = 0.0, _WARM_STEPS if torch.cuda.is_available() else 2  # a GPU's third step captures it
    for number in range(_WARM_STEPS + steps):
        if number == 1:
            until = monotonic() + seconds
        if number >= least and monotonic() > until:
            break
        harness.step(next(batches))
        harness.settle()


def _cold_window(harness: StepHarness, loader: DeviceLoader, seconds: float) -> Callable[[], float]:
    """Each window is a part of an epoch whose files were dropped from the page cache before it.

    Workers that start together finish together. So the clock runs from one batch to that which the same worker may
    have assembled some rounds later: over another number of batches it would count some that were ready before.
    """
    epochs, at_a_time = count(1000, 2), _at_a_time(loader)
    _warm_up(harness, for_ever(loader), 0, seconds)

    def window() -> float:
        source = loader.plan.source
        loader.release()  # workers have the files mapped, and may be reading ahead
        drop(source, range(len(source)))
        loader.set_epoch(next(epochs))
        batches = iter(loader)
        for _ in range(1 + (len(loader) - 1) % at_a_time):
            harness.step(next(batches))
        harness.settle()
        return _throughput(harness, batches, seconds, at_a_time)

    return window


def _at_a_time(loader: DeviceLoader) -> int:
    return max(1, loader.loader.workers)


def _throughput(harness: StepHarness, batches: Iterator[Batch], seconds: float, at_a_time: int = 1) -> float:
    """Return images a second of training on batches, so many at a time, for a while, or until they end."""
    began, images = perf_counter(), 0
    for number, batch in enumerate(batches, 1):
        harness.step(batch)
        images += len(batch)
        if number % at_a_time == 0 and perf_counter() - began > seconds:
            break
    harness.settle()
    return images / (perf_counter() - began)
