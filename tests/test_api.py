from __future__ import annotations

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
