"""One record a loader: what the spec, advice, diagnose and bench know of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from inkmill.config.dataset import DatasetSpec
from inkmill.data.loaders import LOADERS, LoadPlan, loader_for, make_loader
from inkmill.errors import ConfigError


@pytest.mark.parametrize("name", LOADERS)
def test_each_record_names_a_function_and_keys_of_the_spec(name: str) -> None:
    info = LOADERS[name]
    module, function = info.opens.split(":")
    assert callable(getattr(import_module(module), function))
    assert set(info.options) <= set(DatasetSpec.model_fields)
    DatasetSpec.model_validate({"loader": name if info.selectable else "auto", "cache": info.caches[0]})


def test_the_spec_names_the_selectable_loaders_without_importing_them() -> None:
    code = (
        "import sys; from inkmill.config.dataset import DatasetSpec;"
        "DatasetSpec(loader='dali'); assert not {'torch', 'cv2', 'nvidia'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ValueError, match=r"auto.*workers.*dali"):
        DatasetSpec.model_validate({"loader": "threads"})


@pytest.mark.parametrize(
    ("loader", "cache", "name"),
    [("auto", "none", "workers"), ("workers", "ram", "workers"), ("auto", "gpu", "resident"), ("dali", "ram", "dali")],
)
def test_loader_and_cache_choose_a_record(loader: str, cache: str, name: str) -> None:
    assert loader_for(loader, cache).name == name


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "dalli"}, r"unknown loader 'dalli' \(did you mean 'dali'\?\)"),
        ({"augment_on": "dali"}, "augment_on=dali is not for loader=workers: use cpu|gpu"),
        ({"kind": "resident"}, "there is no GPU here"),
    ],
)
def test_a_loader_is_refused_what_it_cannot_do(
    captcha_plan: Callable[..., LoadPlan], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_loader(captcha_plan(), **options)
    with pytest.raises(ConfigError, match="loader=dali cannot cache on 'gpu'"):
        loader_for("dali", "gpu")
