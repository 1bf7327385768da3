"""Which settings are best here, and why: every candidate's speed is predicted, and of the fastest the simplest wins."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Literal

from inkmill.diagnose.facts import Facts, Settings, Tier
from inkmill.diagnose.predict import Prediction, predict, step_of

WORTH = 0.03
"""What is slower than the fastest by no more than this is preferred where it is simpler."""

_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WAITING = 8  # workers a core, at most, where they wait for the disk
_TIERS: tuple[Tier, ...] = ("none", "ram", "gpu", "disk")  # the simplest first

_STAGE_WORDS = {
    "step": "the model's step is the limit",
    "workers": "the loader's processes are the limit",
    "cores": "the cores are the limit",
    "host": "the training process itself is the limit",
    "dali": "DALI is the limit",
}


@dataclass(frozen=True)
class Plan:
    """The best settings and what they were chosen from.

    Attributes:
        best: their prediction.
        current: that of the user's settings.
        why: one sentence.
        others: predictions of the best of each other kind, the fastest first.
        change: the one change to the user's settings that gains most, as spec keys; empty where none gains.
        change_gain: by what factor it is faster.
        step_gain: by what factor the device does the plan's step faster than the user's.
    """

    best: Prediction
    current: Prediction
    why: str
    others: tuple[Prediction, ...]
    change: dict[str, object]
    change_gain: float
    step_gain: float = 1.0

    @property
    def gain(self) -> float:
        """By what factor training gets faster."""
        return self.best.of_run / self.current.of_run


def make_plan(current: Settings, facts: Facts, refused: Collection[Settings] = ()) -> Plan:
    """Return the plan for a run.

    Args:
        current: its settings now.
        facts: what is known.
        refused: settings that do not run here; none that differs in the number of workers alone is planned.
    """
    now = predict(current, facts)
    kinds = {replace(one, workers=0) for one in refused}
    able = (one for one in candidates(current, facts) if replace(one, workers=0) not in kinds)
    predictions = [predict(one, facts) for one in able]
    faster = [one for one in predictions if one.of_run > now.of_run * (1 + WORTH)]
    best = _simplest(faster, current) if faster else now
    change, gain = _one_change(current, now, best, predictions, facts)
    step_gain = step_of(current, facts).seconds / step_of(best.settings, facts).seconds
    return Plan(best, now, _why(best, now, facts), _best_of_kinds(predictions, best), change, gain, step_gain)


def with_workers(plan: Plan, workers: int, facts: Facts) -> Plan:
    """Return a plan with another number of workers."""
    best = predict(replace(plan.best.settings, workers=workers), facts)
    change = {name: workers if name == "dataset.workers" else value for name, value in plan.change.items()}
    return replace(plan, best=best, why=_why(best, plan.current, facts), change=change)


def most_workers(facts: Facts) -> int:
    """Return how many workers are worth a trial where they wait for the disk."""
    return min(_WAITING * facts.cores, _WORKERS[-1])


def candidates(current: Settings, facts: Facts) -> Iterator[Settings]:
    """Yield every combination that this machine can have."""
    for step, cache, augment_on in product(facts.steps, _tiers(facts), _places(facts)):
        if cache == "gpu" and augment_on != "gpu":
            continue
        base = replace(current, cache=cache, augment_on=augment_on, decode_on="cpu", loader="workers")
        base = replace(base, **base.with_step(step))
        for workers in _counts(facts, current):
            if not (cache == "gpu" and workers == 0):
                yield replace(base, workers=workers)
        if cache == "none" and augment_on == "gpu":  # as it was measured; and what the GPU decoded is there already
            for decode_on in facts.dali:
                yield replace(base, loader="dali", decode_on=decode_on, workers=max(1, facts.cores))  # type: ignore[arg-type]


def words_of(overrides: dict[str, object]) -> str:
    """Return spec keys as they are typed."""
    return " ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in overrides.items()
    )


def _tiers(facts: Facts) -> list[Tier]:
    tiers: list[Tier] = ["none"]
    if facts.epochs > 1:
        tiers += [
            tier for tier in _TIERS[1:] if facts.cached_share(tier) > 0 and not (tier == "gpu" and facts.pipeline)
        ]
    return tiers


def _places(facts: Facts) -> list[Literal["cpu", "gpu"]]:
    if facts.pipeline or facts.stages.augment_gpu is None:
        return ["cpu"]
    return ["gpu"] if not facts.stages.draw else ["gpu", "cpu"]


def _counts(facts: Facts, current: Settings) -> list[int]:
    waiting = facts.stages.wait / max(1e-9, facts.stages.fresh)  # while a core serves others
    most = min(facts.cores * math.ceil(1 + waiting), most_workers(facts))
    return sorted({count for count in _WORKERS if count <= most} | {most, current.workers})


def _simplest(predictions: list[Prediction], current: Settings) -> Prediction:
    """Return the simplest of the fastest: the user's own step, nothing kept, few processes."""
    fastest = max(one.of_run for one in predictions)
    good = [one for one in predictions if one.of_run >= fastest * (1 - WORTH)]

    def effort(one: Prediction) -> tuple[object, ...]:
        settings = one.settings
        changed = sum(getattr(settings, name) != getattr(current, name) for name in ("precision", "channels_last"))
        return (
            settings.compile,
            abs(settings.batch_size - current.batch_size),
            changed,
            settings.loader == "dali",
            _TIERS.index(settings.cache),
            settings.augment_on != current.augment_on,
            settings.workers,
            -one.of_run,
        )

    return min(good, key=effort)


def _one_change(
    current: Settings, now: Prediction, best: Prediction, predictions: list[Prediction], facts: Facts
) -> tuple[dict[str, object], float]:
    """Return the single key whose change gains most; where the plan needs several at once, all of them."""
    alone = [one for one in predictions if len(one.settings.overrides(current)) == 1]
    most = max((one.of_run for one in alone), default=0.0)
    enough = [one for one in alone if one.of_run > now.of_run * (1 + WORTH) and one.of_run >= most * (1 - WORTH)]
    if enough:
        found = min(enough, key=lambda one: (one.settings.workers, _TIERS.index(one.settings.cache)))
        return found.settings.overrides(current), found.of_run / now.of_run
    if best is now:
        return {}, 1.0
    return best.settings.overrides(current), best.of_run / now.of_run


def _best_of_kinds(predictions: list[Prediction], best: Prediction) -> tuple[Prediction, ...]:
    """Return the fastest candidate of each (loader, keep, augment_on, decode_on), without the best itself."""
    kinds: dict[tuple[object, ...], Prediction] = {}
    for one in predictions:
        settings = asdict(one.settings)
        kind = tuple(settings[name] for name in ("loader", "cache", "augment_on", "decode_on"))
        if kind not in kinds or one.of_run > kinds[kind].of_run:
            kinds[kind] = one
    others = [one for one in kinds.values() if one.settings != best.settings]
    return tuple(sorted(others, key=lambda one: -one.of_run))


def _why(best: Prediction, now: Prediction, facts: Facts) -> str:
    if best is now:
        return f"nothing that was tried is more than {WORTH:.0%} faster than the settings as they are"
    settings, changes = best.settings, best.settings.overrides(now.settings)
    reasons = []
    if settings.cache != "none" and "dataset.cache" in changes:
        share = facts.cached_share(settings.cache)
        part = "the set" if share == 1 else f"{share:.0%} of the set"
        saved = facts.stages.fresh + facts.stages.fetch + facts.stages.wait - facts.stages.cached
        reasons.append(
            f"{part} fits ({facts.cache_bytes * share / 2**30:.2g} GiB), which saves {saved * 1e6:,.0f} us an image"
        )
    if "dataset.workers" in changes and settings.cache != "gpu":
        cores = f"{facts.cores} cores" if facts.cores > 1 else "one core"
        alone = f"on {cores} the training process loads fastest by itself"
        reasons.append(f"{cores} can feed {settings.workers} processes" if settings.workers else alone)
    if settings.loader == "dali" and "dataset.loader" in changes:
        reasons.append(f"DALI makes {facts.dali[settings.decode_on]:,.0f} images/s here")
    if settings.augment_on == "gpu" and "dataset.augment_on" in changes:
        reasons.append(f"augmenting costs a core {facts.stages.augment * 1e6:,.0f} us an image")
    if set(changes) & {"train.precision", "train.compile", "train.channels_last", "dataset.batch_size"}:
        reasons.append("the step itself gets faster")
    return "; ".join([*reasons, f"then {_STAGE_WORDS[best.limit]}"])
