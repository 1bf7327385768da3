from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import inkmill
from inkmill.config.load import load_spec
from inkmill.errors import ConfigError, DataError, ModelFileError


@pytest.mark.parametrize("kind", [str, Path])
def test_overrides_are_values_and_not_parsed_as_yaml(kind: type, tmp_path: Path) -> None:
    folder = tmp_path / "a: [b], #1"
    folder.mkdir()
    with pytest.raises(DataError) as caught:
        inkmill.train("captcha", dataset__train=[kind(folder)], results_dir=kind(tmp_path / "results"))
    assert str(folder) in str(caught.value)


def test_an_unknown_override_names_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"train\.num_epochs"):
        inkmill.train("captcha", train__num_epoch=3)


def test_a_spec_object_takes_no_overrides() -> None:
    with pytest.raises(ConfigError, match="Spec object"):
        inkmill.evaluate(load_spec("captcha"), evaluate__batch_size=1)


def test_a_file_that_is_no_model_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"notes\.txt: expected a \.safetensors, \.pth or \.onnx file"):
        inkmill.load(tmp_path / "notes.txt")


EXPORTS = """
import importlib, pkgutil, types
import inkmill
packages = ["inkmill", *(one.name for one in pkgutil.walk_packages(inkmill.__path__, "inkmill.") if one.ispkg)]
names = [(one, name) for one in packages for name in getattr(importlib.import_module(one), "__all__", ())]
for package, name in names:
    found = {}
    exec(f"from {package} import {name}", found)
    if isinstance(found[name], types.ModuleType):
        print(f"{package}.{name} is its module")
print(len(names), "names")
"""


def test_what_a_package_offers_is_not_the_module_of_that_name() -> None:
    """A name that loads on first use is hidden by a module of the same name, which that loads."""
    done = subprocess.run([sys.executable, "-c", EXPORTS], capture_output=True, text=True, check=True)
    (told,) = done.stdout.splitlines()
    assert int(told.split()[0]) > 20
