"""The tuning plan: which settings are best here and why, and the file in which `dataset.loader=auto` finds them.

Every candidate's throughput is predicted (predict.py), and of the fastest the simplest wins. A saved plan is a small
JSON file in the user's cache folder, named by a hash of all that it depends on, so another machine, other data or
another model never find it. It says only how batches are made, never what is in them: what is learned is the same with
it and without.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from inkmill.config.spec import Spec
from inkmill.data.loaders import LOADERS
from inkmill.data.pipeline.cache import default_cache_dir
from inkmill.data.sources import Source
from inkmill.files import write_json_atomic
from inkmill.machine import cores, cpu_model
from inkmill.perf.predict import Facts, Prediction, Settings, Tier, predict
from inkmill.perf.rules import WORTH
from inkmill.version import __version__

_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WORKERS_A_CORE = 8  # at most, where they wait for the disk
_TIERS: tuple[Tier, ...] = ("none", "ram", "gpu", "disk")  # the simplest first

_LIMITS = {
    "step": "the model's step is the limit",
    "workers": "the loader's processes are the limit",
    "cores": "the cores are the limit",
    "host": "the training process itself is the limit",
    "loader": "the loader is the limit",
}

_VERSION = 2
_AUTO_WORKERS, _AUTO_WORKERS_ON_CPU = 16, 4  # at most, without a plan; training on a CPU takes cores too
_MOST_BYTES = 1 << 16

Say = Callable[[str], None]


@dataclass(frozen=True)
class TuningPlan:
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
    change: dict[str, Any]
    change_gain: float
    step_gain: float = 1.0

    @property
    def overrides(self) -> dict[str, Any]:
        """The keys of the spec that the plan changes, with their values."""
        return self.best.settings.overrides(self.current.settings)

    @property
    def gain(self) -> float:
        """By what factor training gets faster."""
        return self.best.of_run / self.current.of_run


def make_plan(
    current: Settings, facts: Facts, refused: Collection[Settings] = (), fixed: Collection[str] = ()
) -> TuningPlan:
    """Return the plan for a run.

    Args:
        current: its settings now.
        facts: what is known.
        refused: settings that do not run here; none that differs in the number of workers alone is planned.
        fixed: fields of `Settings` that stay as they are.
    """
    # 1. Predict every candidate that may be planned.
    now = predict(current, facts)
    kinds = {replace(one, workers=0) for one in refused}
    able = (
        one
        for one in candidates(current, facts)
        if replace(one, workers=0) not in kinds and all(getattr(one, name) == getattr(current, name) for name in fixed)
    )
    predictions = [predict(one, facts) for one in able]
    # 2. Of those that are faster by more than counts, take the simplest of the fastest.
    faster = [one for one in predictions if one.of_run > now.of_run * (1 + WORTH)]
    best = _simplest(faster, current) if faster else now
    # 3. Say what one change alone would gain, and why the plan is as it is.
    change, gain = _one_change(current, now, best, predictions)
    step_gain = facts.step_of(current).seconds / facts.step_of(best.settings).seconds
    return TuningPlan(best, now, _why(best, now, facts), _best_of_kinds(predictions, best), change, gain, step_gain)


def candidates(current: Settings, facts: Facts) -> Iterator[Settings]:
    """Yield every combination that this machine can have."""
    for step, tier, augment_on in product(facts.steps, _tiers(facts), _augmenters(facts)):
        if tier == "gpu" and augment_on != "gpu":
            continue
        base = replace(current, cache=tier, augment_on=augment_on, **step.settings)
        if tier not in ("none", "gpu"):
            wanted = min(facts.cache_bytes, facts.room.get(tier, 0)) / 2**30
            base = replace(base, cache_gib=max(current.cache_gib, float(math.ceil(wanted))))
        for loader in (info.name for info in LOADERS.values() if info.processes):
            for workers in _worker_counts(facts, current):
                if not (tier == "gpu" and workers == 0):
                    yield replace(base, loader=loader, options=(), workers=workers)
        if tier == "none" and augment_on == "gpu":  # such loaders are measured while the GPU augments
            for loader, options in facts.rates:
                yield replace(base, loader=loader, options=options, workers=max(1, facts.cores))


def words_of(overrides: dict[str, Any]) -> str:
    """Return spec keys as they are typed."""
    return " ".join(f"{key}={_typed(value)}" for key, value in overrides.items())


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tiers(facts: Facts) -> list[Tier]:
    tiers = [tier for tier in _TIERS if facts.cached_share(tier, math.inf) > 0 and facts.epochs > 1]
    return ["none", *(tier for tier in tiers if tier != "gpu" or facts.gpu_can_augment)]


def _augmenters(facts: Facts) -> list[str]:
    if not facts.gpu_can_augment or facts.costs.augment_gpu is None:
        return ["cpu"]
    return ["gpu"] if not facts.costs.augment else ["gpu", "cpu"]


def _worker_counts(facts: Facts, current: Settings) -> list[int]:
    waiting = facts.costs.disk_wait / max(1e-9, facts.costs.fresh)  # while one waits, its core serves others
    most = min(facts.cores * math.ceil(1 + waiting), _WORKERS_A_CORE * facts.cores, _WORKERS[-1])
    return sorted({count for count in _WORKERS if count <= most} | {most, current.workers})


def _effort(settings: Settings, current: Settings) -> tuple[Any, ...]:
    """Return how far settings are from simple: the user's own step, no cache, few processes come first."""
    changed = sum(getattr(settings, name) != getattr(current, name) for name in ("precision", "channels_last"))
    return (
        settings.compile is True,
        abs(settings.batch_size - current.batch_size),
        changed,
        settings.loader != current.loader,
        _TIERS.index(settings.cache),
        settings.augment_on != current.augment_on,
        settings.workers,
    )


def _simplest(predictions: list[Prediction], current: Settings) -> Prediction:
    fastest = max(one.of_run for one in predictions)
    good = [one for one in predictions if one.of_run >= fastest * (1 - WORTH)]
    return min(good, key=lambda one: (*_effort(one.settings, current), -one.of_run))


def _one_change(
    current: Settings, now: Prediction, best: Prediction, predictions: list[Prediction]
) -> tuple[dict[str, Any], float]:
    """Return the single key whose change gains most; where the plan needs several at once, all of them."""
    alone = [one for one in predictions if len({*one.settings.overrides(current)} - {"dataset.cache_gib"}) <= 1]
    most = max((one.of_run for one in alone), default=0.0)
    enough = [one for one in alone if one.of_run > now.of_run * (1 + WORTH) and one.of_run >= most * (1 - WORTH)]
    if enough:
        found = min(enough, key=lambda one: _effort(one.settings, current))
        return found.settings.overrides(current), found.of_run / now.of_run
    return best.settings.overrides(current), best.of_run / now.of_run


def _best_of_kinds(predictions: list[Prediction], best: Prediction) -> tuple[Prediction, ...]:
    """Return the fastest candidate of each (loader, options, cache, augment_on), without the best itself."""
    kinds: dict[tuple[Any, ...], Prediction] = {}
    for one in predictions:
        settings = one.settings
        kind = (settings.loader, settings.options, settings.cache, settings.augment_on)
        if kind not in kinds or one.of_run > kinds[kind].of_run:
            kinds[kind] = one
    others = [one for one in kinds.values() if one.settings != best.settings]
    return tuple(sorted(others, key=lambda one: -one.of_run))


def _why(best: Prediction, now: Prediction, facts: Facts) -> str:
    """Return one sentence: what each change brings, and what is the limit then."""
    if best is now:
        return f"nothing that was tried is more than {WORTH:.0%} faster than the settings as they are"
    settings, changes, costs = best.settings, best.settings.overrides(now.settings), facts.costs
    reasons = []
    if settings.cache != "none" and changes.keys() & {"dataset.cache", "dataset.cache_gib"}:
        share = facts.cached_share(settings.cache, settings.cache_gib)
        part = "the set" if share == 1 else f"{share:.0%} of the set"
        saved = costs.fresh + costs.disk_wait - costs.cached
        reasons.append(
            f"{part} fits ({facts.cache_bytes * share / 2**30:.2g} GiB), which saves {saved * 1e6:,.0f} us an image"
        )
    if "dataset.workers" in changes and settings.cache != "gpu":
        machine = f"{facts.cores} cores" if facts.cores > 1 else "one core"
        alone = f"on {machine} the training process loads fastest by itself"
        reasons.append(f"{machine} can feed {settings.workers} processes" if settings.workers else alone)
    if "dataset.loader" in changes and (settings.loader, settings.options) in facts.rates:
        rate = facts.rates[settings.loader, settings.options]
        reasons.append(f"loader={settings.loader} makes {rate:,.0f} images/s here")
    if settings.augment_on == "gpu" and "dataset.augment_on" in changes:
        reasons.append(f"augmenting costs a core {costs.augment * 1e6:,.0f} us an image")
    if changes.keys() & {"train.precision", "train.compile", "train.channels_last", "dataset.batch_size"}:
        reasons.append("the step itself gets faster")
    return "; ".join([*reasons, f"then {_LIMITS[best.limit]}"])


# The plan that `dataset.loader=auto` takes ---------------------------------------------------------------------------


def planned_keys(settings: Settings) -> dict[str, Any]:
    """Return the keys of `dataset` that a saved plan sets, where the user has not."""
    fixed = {name: getattr(settings, name) for name in ("loader", "workers", "cache", "augment_on")}
    return fixed | dict(settings.options)


def remember(spec: Spec, source: Source, device: torch.device, settings: Settings, why: str) -> Path:
    """Save a plan for later runs and return its file.

    Args:
        spec: what the plan was made for.
        source: the training data.
        device: what is trained on.
        settings: the plan's.
        why: one sentence.

    Raises:
        OutputError: the cache folder cannot be written.
    """
    path = _file(spec, source, device)
    write_json_atomic(path, {"version": _VERSION, "settings": planned_keys(settings), "why": why})
    return path


def with_plan(spec: Spec, source: Source, device: torch.device, ranks: int, say: Say) -> Spec:
    """Return the spec with `loader=auto` decided, and print in one line what was decided and why.

    What the user has set stays. Nothing is measured here, so that training starts as fast as ever.

    Args:
        spec: the resolved spec.
        source: the training data.
        device: what is trained on.
        ranks: processes that train; plans are for one.
        say: prints one line.
    """
    if spec.dataset.loader != "auto":
        return spec
    planned = _planned(spec, source, device, say) if ranks == 1 else None
    if planned is None:
        return _without_plan(spec, device, ranks, say)
    spec, why = planned
    dataset = spec.dataset
    words = f"{dataset.workers} worker processes" if dataset.loader == "workers" else f"{dataset.loader}"
    say(f"loader: {words}, cache={dataset.cache}, augment_on={dataset.augment_on}, as measured by diagnose: {why}")
    return spec


def _planned(spec: Spec, source: Source, device: torch.device, say: Say) -> tuple[Spec, str] | None:
    """Return the spec with the saved plan and the plan's reason; None without a plan that can be used."""
    path = _file(spec, source, device)
    if not path.is_file():
        return None
    given = spec.dataset.model_fields_set - {"loader"}
    spec = spec.model_copy(deep=True)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("too large")
        plan = json.loads(path.read_text(encoding="utf-8"))
        if plan["version"] != _VERSION:
            return None
        known = {*planned_keys(Settings()), *(name for info in LOADERS.values() for name in info.options)}
        for name, value in plan["settings"].items():
            if name not in known:
                raise ValueError(f"unknown key {name!r}")
            if name not in given:
                setattr(spec.dataset, name, value)  # pydantic checks each value
        return spec, str(plan["why"])[:500]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
        say(f"the plan in {path} is damaged and was ignored; `inkmill diagnose` makes a new one")
        return None


def _without_plan(spec: Spec, device: torch.device, ranks: int, say: Say) -> Spec:
    """Return the spec with as many workers as the cores allow."""
    count, found = spec.dataset.workers, cores()
    reason = "as dataset.workers says"
    if "workers" not in spec.dataset.model_fields_set:
        most = max(1, found // ranks - 1) if device.type == "cuda" else min(_AUTO_WORKERS_ON_CPU, found)
        count, reason = min(_AUTO_WORKERS, most), f"for {found} cores"
        spec = spec.model_copy(deep=True)
        spec.dataset.workers = count
    say(f"loader: {count} worker processes, {reason}; `inkmill diagnose` would measure what is fastest here")
    return spec


def _file(spec: Spec, source: Source, device: torch.device) -> Path:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    key = {
        "machine": (cpu_model(), cores(), gpu),
        "software": (__version__, torch.__version__),
        "data": source.storage_fingerprint,  # the same for all parts of one set
        "model": spec.model.model_dump(),
        "augmentation": spec.dataset.augmentation.model_dump(),
        "batch_size": spec.dataset.batch_size,
        "step": (spec.train.precision, spec.train.compile, spec.train.channels_last),
        "one_epoch": spec.train.num_epochs == 1,  # then a cache saves nothing
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:24]
    return default_cache_dir() / "plans" / f"{digest}.json"
