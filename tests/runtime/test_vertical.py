"""Tall pictures of text are read three ways."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.modelfile.header import ModelHeader
from inkmill.runtime.evaluate import open_tests, read_tests
from inkmill.runtime.infer import read_files
from inkmill.runtime.reader import BaseReader
from inkmill.runtime.vertical import is_tall
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.decoder import Reading
from inkmill.tasks.recognition.task import Recognition

Pixels = NDArray[np.uint8]


class Left(BaseReader):
    """Reads "a", and is the surer the darker the left half of a picture is, against its right half."""

    def __init__(self, resize: str = "aspect") -> None:
        spec = ModelSpec.model_validate(
            {"input_width": 128, "input_height": 32, "input_channel": 1, "input_resize": resize}
        )
        super().__init__(ModelHeader.of(Recognition(spec, Charset(("a",)), 4)))
        self.batches: list[int] = []

    def outputs(self, images: Pixels, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        self.batches.append(len(images))
        half = images.shape[2] // 2
        dark = images[:, :, half:].mean(axis=(1, 2, 3)) - images[:, :, :half].mean(axis=(1, 2, 3))
        sure = (0.5 + dark / 600).astype(np.float32)[:, None]
        return {"output_id": np.ones(sure.shape, np.int32), "output_prob": sure}


def picture(side: str, height: int = 90, width: int = 30) -> Pixels:
    """A white picture with one dark half."""
    image = np.full((height, width), 255, np.uint8)
    part = {"top": np.s_[: height // 2], "bottom": np.s_[height // 2 :], "left": np.s_[:, : width // 2]}[side]
    image[part] = 0
    return image


@pytest.mark.parametrize("resize", ["aspect", "stretch"])
def test_the_surest_of_three_ways_counts(resize: str) -> None:
    reader = Left(resize)
    sides = ["top", "left", "bottom"]
    sure = [reading.confidence for reading in reader.read([picture(side) for side in sides])]
    assert sure == pytest.approx([0.925] * 3, abs=0.01)  # each has a way on which its left half is the dark one
    reader.both_ways = False
    sure = [reading.confidence for reading in reader.read([picture(side) for side in sides])]
    assert sure == pytest.approx([0.5, 0.925, 0.5], abs=0.01)


def test_what_is_not_tall_costs_nothing_more() -> None:
    reader = Left()
    reader.read([picture("top", 45, 30), picture("top", 46, 30)])
    assert sum(reader.batches) == 1 + 3
    assert not is_tall(30, 45)


def test_turned_pictures_are_read_in_the_batches_of_others() -> None:
    reader = Left()
    reader.read([picture("top") for _ in range(8)] + [picture("left", 20, 60) for _ in range(8)], batch_size=100)
    assert sorted(reader.batches) == [8, 24]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = []
    for number, side in enumerate(["top", "left", "bottom", "top"]):
        image = picture(side, *((30, 90) if number == 3 else (90, 30)))
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), image)
        lines.append(f"{number}.png\ta\n")
    (tmp_path / "labels.tsv").write_text("".join(lines))
    return tmp_path


def test_files_are_read_as_arrays_are(folder: Path) -> None:
    paths = sorted(folder.glob("*.png"))
    problems: list[str] = []
    (folder / "1.png").write_bytes(paths[1].read_bytes()[:60])  # its header alone is whole
    found = list(read_files(Left(), paths, batch_size=2, problems=problems))
    assert [Path(one.key).name for one in found] == ["0.png", "2.png", "3.png"]
    sure = [one.confidence for one in found if isinstance(one, Reading)]
    assert sure == pytest.approx([0.925, 0.925, 0.5], abs=0.01)
    assert len(problems) == 1


def test_a_test_set_has_one_row_a_picture(folder: Path) -> None:
    spec = load_spec(None, [f"evaluate.test={folder}", "evaluate.workers=0"])
    rows = read_tests(Left(), spec, open_tests(spec), Console(quiet=True))
    assert [row.index for row in rows] == [0, 1, 2, 3]
    sure = [row.prediction.confidence for row in rows if isinstance(row.prediction, Reading)]
    assert sure == pytest.approx([0.925, 0.925, 0.925, 0.5], abs=0.01)
