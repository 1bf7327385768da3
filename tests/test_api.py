from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import inkmill
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
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


def test_one_file_of_a_run_is_enough_to_read(
    small_spec: Callable[..., Spec], few_captchas: Path, tmp_path: Path
) -> None:
    result = inkmill.train(small_spec())
    assert sorted(path.name for path in result.folder.glob("*.p*")) == [
        "curves.png",
        "model_epoch_001_step_00007.pth",
        "model_epoch_002_step_00014.pth",
        "model_epoch_003_step_00021.pth",
        "ocr_model_latest.pth",
    ]
    alone = tmp_path / "elsewhere" / "reader.safetensors"
    alone.parent.mkdir()
    alone.write_bytes(result.model.read_bytes())
    images = sorted((few_captchas.parent / "images").iterdir())[:5]
    several = inkmill.load(alone, device="cpu").read(images)
    one_by_one = [inkmill.load(alone, device="cpu").read(image)[0] for image in images]
    assert [reading.text for reading in several] == [reading.text for reading in one_by_one]
    assert all(0 <= reading.confidence <= 1 for reading in several)


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
