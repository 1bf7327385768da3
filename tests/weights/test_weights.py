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


def word(text: str) -> np.ndarray:
    image = np.full((48, 22 * len(text) + 20, 3), 235, np.uint8)
    return np.asarray(cv2.putText(image, text, (10, 34), cv2.FONT_HERSHEY_SIMPLEX, 1.0, (40, 30, 20), 2, cv2.LINE_AA))


@pytest.mark.skipif(not (weights.FOLDER / "reader.onnx").is_file(), reason="no reader is packaged")
def test_the_packaged_reader_reads_words_upright_and_on_their_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["OPEN", "World", "2026", "Market 24", "STATION"]
    pictures = [word(text) for text in words]
    reader = inkmill.load()
    assert [one.text for one in reader.read(pictures)] == words
    assert [one.text for one in reader.read([np.rot90(picture) for picture in pictures])] == words
    assert cv2.imwrite(str(tmp_path / "word.png"), pictures[0])
    assert run(["infer", str(tmp_path / "word.png")]) == 0
    assert "OPEN" in capsys.readouterr().out
    assert {"ế", "Đ", "€", " "} <= set(reader.task.class_names)


@pytest.mark.parametrize("name", weights.NAMES)
def test_what_is_packaged_is_small_and_has_its_card(name: str) -> None:
    file = weights.FOLDER / f"{name}.onnx"
    if not file.is_file():
        pytest.skip(f"no {name} is packaged")
    assert file.stat().st_size <= weights.MAX_BYTES
    assert "inkmill" in read_outline(file.read_bytes(), str(file))[0]
    card = file.with_suffix(".md").read_text("utf-8").lower()
    assert all(part in card for part in ("licence", "trained on"))
