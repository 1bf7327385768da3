"""The plan, tried: what does not run makes room for the next best, and what is not faster is taken back.

How many workers are worth it where they wait for a disk is the least certain prediction of all: those that run while
others wait get in each other's way, and in the disk's. So it is tried there, with twice as many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from inkmill.diagnose.facts import Facts, Settings
from inkmill.diagnose.plan import WORTH, Plan, make_plan, most_workers, with_workers, words_of
from inkmill.diagnose.windows import Interval
from inkmill.errors import first_line

_MOST_REFUSED = 3  # plans that do not run; each trial takes seconds


@dataclass(frozen=True)
class Proved:
    """What came of it.

    Attributes:
        plan: that which held, or the settings as they are.
        auto: the best settings that leave the step as it is: what `dataset.loader=auto` takes.
        measured: images a second of the trial; of the settings as they are where no plan was tried or held.
        notes: about plans that did not hold.
    """

    plan: Plan
    auto: Plan
    measured: Interval
    notes: tuple[str, ...] = ()


def prove(
    current: Settings,
    facts: Facts,
    now: Interval,
    trial: Callable[[Plan], Interval],
    time_left: Callable[[], bool] = lambda: False,
) -> Proved:
    """Make the plan and try it.

    Args:
        current: the settings as they are.
        facts: what is known.
        now: images a second with them.
        trial: trains with a plan for a moment and returns the images a second.
        time_left: whether there is time for one trial more.
    """
    refused: list[Settings] = []
    notes: list[str] = []
    while True:
        plan, auto = _plans(current, facts, refused)
        if refused and (plan.best is plan.current or len(refused) == _MOST_REFUSED):
            return unproved(current, facts, now, "nothing better runs here", notes, refused)
        try:
            measured = trial(plan)
        except Exception as error:  # a compiler's and DALI's errors share no base, and none is worth what was measured
            refused.append(plan.best.settings)
            if isinstance(error, torch.OutOfMemoryError):  # with pictures from elsewhere the step is no smaller
                facts = _without_step(facts, plan.best.settings)
            words = words_of(plan.best.settings.overrides(current)) or "this"
            notes.append(f"{words} does not run here: {first_line(error)}")
            continue
        if plan.best is not plan.current and facts.stages.wait and not facts.page_cached:
            planned = plan.best.settings.workers
            plan, measured = _climb(facts, plan, measured, trial, time_left, notes)
            if auto.best is not auto.current and auto.best.settings.workers == planned:
                auto = with_workers(auto, plan.best.settings.workers, facts)
        if plan.best is not plan.current and measured.high < now.mean:
            notes.append(
                f"the plan was taken back: tried, it made {measured.mean:,.0f} images/s, "
                f"and the settings as they are make {now.mean:,.0f}"
            )
            return unproved(current, facts, now, "the settings as they are won", notes, refused)
        return Proved(plan, auto, measured, tuple(notes))


def _climb(
    facts: Facts,
    plan: Plan,
    measured: Interval,
    trial: Callable[[Plan], Interval],
    time_left: Callable[[], bool],
    notes: list[str],
) -> tuple[Plan, Interval]:
    """Where training waits for workers, and they for a disk: try twice as many as long as that is faster."""
    while plan.best.limit in ("workers", "cores") and plan.best.settings.loader == "workers" and time_left():
        workers = min(2 * plan.best.settings.workers, most_workers(facts))
        if workers <= plan.best.settings.workers:
            break
        more = with_workers(plan, workers, facts)
        try:
            faster = trial(more)
        except Exception as error:  # no memory for so many, say; those before ran
            notes.append(f"dataset.workers={workers} does not run here: {first_line(error)}")
            break
        if faster.mean <= measured.mean * (1 + WORTH):
            break
        plan, measured = more, faster
    return plan, measured


def unproved(
    current: Settings, facts: Facts, now: Interval, why: str, notes: list[str], refused: Collection[Settings] = ()
) -> Proved:
    """Return that the settings stay as they are, for dataset.loader=auto too."""
    plans = _plans(current, facts, refused)
    plan, auto = (replace(one, best=one.current, why=why, change={}, change_gain=1.0) for one in plans)
    return Proved(plan, auto, now, tuple(notes))


def _without_step(facts: Facts, settings: Settings) -> Facts:
    users, *others = facts.steps
    return replace(
        facts, steps=(users, *(step for step in others if replace(settings, **settings.with_step(step)) != settings))
    )


def _plans(current: Settings, facts: Facts, refused: Collection[Settings]) -> tuple[Plan, Plan]:
    of_step = replace(facts, steps=facts.steps[:1])
    return make_plan(current, facts, refused), make_plan(current, of_step, refused)
