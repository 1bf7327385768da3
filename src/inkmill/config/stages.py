"""Trainings one after the other from one spec: `stages` says what each changes, and each begins where the last ended.

    stages:
      synthetic: {dataset: {synthetic: {...}}, train: {num_epochs: 60}}
      mixed: {dataset: {train: [words/]}, train: {num_epochs: 12, optim: {lr: 2.0e-4}}}

A stage is a whole spec: the one around it, with the keys changed that the stage names. Sections are merged and lists
are replaced, as everywhere in a spec.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

if TYPE_CHECKING:
    from inkmill.config.spec import Spec


def stages_of(spec: Spec) -> dict[str, Spec]:
    """Return the spec of each stage by name, in order; a spec without stages is its own only one, named "".

    The results of a stage go to results_dir/NAME/train.
    """
    return {name: _stage_of(spec, name) for name in spec.stages} or {"": spec}


def check_stages(spec: Spec) -> None:
    """Raise ValueError with one sentence where a stage cannot be."""
    for name in spec.stages:
        if not re.fullmatch(r"\w[\w-]*", name):
            raise ValueError(f"stages: {name!r} is to be the name of a folder: use letters, digits, - and _")
        try:
            _stage_of(spec, name)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("stages", name, *first["loc"])))
            said = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{where}: {said}") from None


def _stage_of(spec: Spec, name: str) -> Spec:
    stage = merged(spec.model_dump(exclude_unset=True, exclude={"stages"}), spec.stages[name])
    stage["results_dir"] = str(Path(stage.get("results_dir", spec.results_dir)) / name)
    stage["encryption_key"] = spec.encryption_key  # a dump leaves it out
    return type(spec).model_validate(stage)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of nested keys with those of `above` in place: mappings are merged, all else is replaced."""
    result = deepcopy(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(value, dict) and isinstance(old, dict) else deepcopy(value)
    return result
