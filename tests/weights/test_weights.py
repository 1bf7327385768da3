"""Models that the package carries."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import inkmill
from inkmill import weights
from inkmill.cli.main import run
from inkmill.errors import InkmillError
from inkmill.modelfile.onnx_file import read_outline
from inkmill.runtime import Reader


@pytest.fixture
def nothing_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    return tmp_path


def test_a_package_without_a_reader_says_what_to_do(nothing_packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ask in (weights.path, lambda name: inkmill.load(), lambda name: Reader()):
        with pytest.raises(InkmillError, match=r"carries no reader .*give a model file"):
            ask("reader")
    image = nothing_packaged / "a.png"
    cv2.imwrite(str(image), np.zeros((32, 64), np.uint8))
    assert run(["infer", str(image)]) == 2
    assert "carries no reader" in capsys.readouterr().err


@pytest.mark.parametrize("name", weights.NAMES)
def test_what_is_packaged_is_small_and_has_its_card(name: str) -> None:
    file = weights.FOLDER / f"{name}.onnx"
    if not file.is_file():
        pytest.skip(f"no {name} is packaged")
    assert file.stat().st_size <= weights.MAX_BYTES
    assert "inkmill" in read_outline(file.read_bytes(), str(file))[0]
    card = file.with_suffix(".md").read_text("utf-8")
    assert all(part in card for part in ("licence", "trained on"))
