"""The plan, tried: what does not run makes room for the next best, and what is not faster is taken back.

How long workers wait for a disk that many read at a time is the least certain of all facts. So where a trial falls
short for them, the plan is made once more with what it taught, which asks for more of them; the faster of both stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from inkmill.diagnose.facts import Facts, Settings
from inkmill.diagnose.plan import WORTH, Plan, make_plan, words_of
from inkmill.diagnose.windows import Interval
from inkmill.errors import first_line

_MOST_REFUSED = 3  # plans that do not run; each trial takes seconds
_SHORT = 0.95  # of what was predicted; a trial that makes less teaches


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
        if (learned := _learned(facts, plan, measured)) is not None and time_left():
            plan, auto, measured = _again(current, learned, refused, (plan, auto, measured), trial, notes)
        if plan.best is not plan.current and measured.high < now.mean:
            notes.append(
                f"the plan was taken back: tried, it made {measured.mean:,.0f} images/s, "
                f"and the settings as they are make {now.mean:,.0f}"
            )
            return unproved(current, facts, now, "the settings as they are won", notes, refused)
        return Proved(plan, auto, measured, tuple(notes))


def _learned(facts: Facts, plan: Plan, measured: Interval) -> Facts | None:
    """Return the facts with so long a wait for the disk that it explains the trial; None where nothing is learned."""
    best, stages = plan.best, facts.stages
    waits = not facts.page_cached and stages.wait > 0 and best.settings.loader == "workers" and best.settings.workers
    if not waits or best.limit not in ("workers", "cores") or measured.high > _SHORT * best.images_per_s:
        return None
    longer = best.settings.workers * (1 / measured.mean - 1 / best.images_per_s)
    return replace(facts, stages=replace(stages, wait=stages.wait + longer))


def _again(
    current: Settings,
    facts: Facts,
    refused: Collection[Settings],
    first: tuple[Plan, Plan, Interval],
    trial: Callable[[Plan], Interval],
    notes: list[str],
) -> tuple[Plan, Plan, Interval]:
    """Make and try the plan of other facts; return it where it is faster than the first, else that."""
    plan, auto = _plans(current, facts, refused)
    if plan.best.settings == first[0].best.settings:
        return first
    try:
        measured = trial(plan)
    except Exception as error:  # the first one runs
        notes.append(f"{words_of(plan.best.settings.overrides(current))} does not run here: {first_line(error)}")
        return first
    return (plan, auto, measured) if measured.mean > first[2].mean * (1 + WORTH) else first


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
