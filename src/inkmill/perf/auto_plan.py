"""`dataset.loader=auto`: the loader that `inkmill diagnose` found best for this machine, data and model.

A plan is a small JSON file in the user's cache folder, named by a hash of all that it depends on, so another machine,
other data or another model never find it. It says only how batches are made, never what is in them: what is learned is
the same with it and without.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from inkmill.config.spec import Spec
from inkmill.data.pipeline.cache import default_cache_dir
from inkmill.data.sources import Source
from inkmill.files import write_json_atomic
from inkmill.machine import cores, cpu_model
from inkmill.tasks.base import Say
from inkmill.version import __version__

PLANNED = ("loader", "workers", "cache", "augment_on", "decode_on")
"""The keys of `dataset` that a plan sets, where the user has not."""

_VERSION = 1
_MOST_WORKERS = 16
_CPU_WORKERS = 4  # beside training on a CPU, which takes cores too
_MOST_BYTES = 1 << 16


def remember(spec: Spec, source: Source, device: torch.device, settings: dict[str, Any], why: str) -> Path:
    """Keep a plan for later runs and return its file.

    Args:
        spec: what the plan was made for.
        source: the training data.
        device: what is trained on.
        settings: values of PLANNED.
        why: one sentence.

    Raises:
        OutputError: the cache folder cannot be written.
    """
    path = _file(spec, source, device)
    plan = {"version": _VERSION, "settings": {name: settings[name] for name in PLANNED}, "why": why}
    write_json_atomic(path, plan)
    return path


def with_plan(spec: Spec, source: Source, device: torch.device, ranks: int, say: Say) -> Spec:
    """Return the spec with `loader=auto` decided, and say in one line what was decided and why.

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
        for name in PLANNED:
            if name not in given:
                setattr(spec.dataset, name, plan["settings"][name])
        return spec, str(plan["why"])[:500]
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        say(f"the plan in {path} is damaged and was ignored; `inkmill diagnose` makes a new one")
        return None


def _without_plan(spec: Spec, device: torch.device, ranks: int, say: Say) -> Spec:
    count, found = spec.dataset.workers, cores()
    reason = "as dataset.workers says"
    if "workers" not in spec.dataset.model_fields_set:
        most = max(1, found // ranks - 1) if device.type == "cuda" else min(_CPU_WORKERS, found)
        count, reason = min(_MOST_WORKERS, most), f"for {found} cores"
        spec = spec.model_copy(deep=True)
        spec.dataset.workers = count
    say(f"loader: {count} worker processes, {reason}; `inkmill diagnose` would measure what is fastest here")
    return spec


def _file(spec: Spec, source: Source, device: torch.device) -> Path:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    key = {
        "machine": (cpu_model(), cores(), gpu),
        "software": (__version__, torch.__version__),
        "data": source.storage_fingerprint,
        "model": spec.model.model_dump(),
        "augmentation": spec.dataset.augmentation.model_dump(),
        "batch_size": spec.dataset.batch_size,
        "step": (spec.train.precision, spec.train.compile, spec.train.channels_last),
        "one_epoch": spec.train.num_epochs == 1,  # then keeping pictures saves nothing
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:24]
    return default_cache_dir() / "plans" / f"{digest}.json"
