from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from inkmill.cli.main import run
from inkmill.config.dataset import SourceSpec
from inkmill.data.sources import open_source
from inkmill.synth.fonts import CARRIED

FONT = f"dataset.synthetic.fonts={CARRIED / 'OpenSans-Regular.ttf'}"


def test_a_sheet_is_a_picture_and_its_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", str(tmp_path / "sheet.png"), "--samples", "12", FONT]) == 0
    image = cv2.imread(str(tmp_path / "sheet.png"))
    assert image is not None
    assert image.shape[1] == 1200
    assert image.std() > 20
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines[:12]] == [str(number) for number in range(12)]


def test_a_data_set_is_kept_whole_and_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["synth", str(tmp_path / "words"), "--samples", "10", "--workers", "0", FONT]
    assert run(command) == 0
    source = open_source(SourceSpec(path=str(tmp_path / "words")))
    assert len(source) == 10
    assert all(source.target(index).value for index in range(10))  # type: ignore[union-attr]
    assert run(command) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_report_names_each_font_and_what_is_wrong_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    fonts = f"dataset.synthetic.fonts=[{CARRIED / 'Anton-Regular.ttf'},{tmp_path / 'broken.ttf'}]"
    assert run(["synth", str(tmp_path / "fonts.txt"), fonts]) == 2  # no font has all characters
    assert "no font has the characters '–'" in capsys.readouterr().err
    fonts = fonts.replace("[", f"[{CARRIED / 'OpenSans-Regular.ttf'},")
    assert run(["synth", str(tmp_path / "fonts.txt"), fonts]) == 0
    assert "2 of 3 fonts are used" in capsys.readouterr().out
    report = (tmp_path / "fonts.txt").read_text(encoding="utf-8")
    assert "Anton: lacks –" in report
    assert "broken.ttf: left out: cannot be read as a font" in report


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "one DESTINATION"),
        (["sheet.gif"], "a sheet is a .png or .jpg file"),
        (["sheet.png", "dataset.synthetic.preset=scene"], "preset"),
        (["sheet.png", "dataset.synthetic.fonts=nowhere"], "no font file or folder nowhere"),
        (["sheet.png", "dataset.synthetic.languages.fr=1"], "no texts for 'fr'"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["synth", *given, "--samples", "2"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
