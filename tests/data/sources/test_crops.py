"""Crops of the regions of pages."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import CropSource, open_source
from inkmill.data.types import Text
from inkmill.errors import ConfigError, DataError

STRAIGHT = [[20, 10], [80, 10], [80, 30], [20, 30]]
UPRIGHT = [[180, 20], [180, 80], [160, 80], [160, 20]]  # written downwards: its top looks to the right
FIVE = [[20, 50], [50, 50], [80, 50], [80, 70], [20, 70]]


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """One page with regions of one colour each, and one that is damaged."""
    page = np.zeros((100, 200, 3), np.uint8)
    page[10:30, 20:80] = 50, 100, 150
    page[20:80, 160:180] = 200, 20, 20
    page[50:70, 20:80] = 10, 220, 10
    (tmp_path / "set").mkdir()
    cv2.imwrite(str(tmp_path / "set" / "page.png"), page)
    (tmp_path / "set" / "torn.png").write_bytes(b"no picture")
    regions = [("one", STRAIGHT), ("###", [[0, 0], [5, 0], [5, 5]]), ("two", UPRIGHT), ("three", FIVE), ("", STRAIGHT)]
    regions.append(("far", [[500, 500], [600, 500], [600, 520], [500, 520]]))
    rows = [{"transcription": text, "points": points} for text, points in regions]
    lines = [f"page.png\t{json.dumps(rows)}", f"torn.png\t{json.dumps(rows[:1])}"]
    (tmp_path / "set" / "Label.txt").write_text("\n".join(lines))
    return tmp_path / "set"


def test_each_region_with_a_text_is_an_upright_crop(pages: Path) -> None:
    source = CropSource(open_source(SourceSpec(path=str(pages))))
    assert [source.key(index) for index in range(4)] == [f"page-000{number}.png" for number in (1, 3, 4, 6)]
    expected = [("one", (150, 100, 50)), ("two", (20, 20, 200)), ("three", (10, 220, 10))]
    for index, (text, colour) in enumerate(expected):
        crop = decode(source.image(index), 3)
        assert source.target(index) == Text(text)
        assert crop.shape == (20, 60, 3)
        assert np.abs(crop[2:-2, 2:-2].astype(int) - colour).max() <= 1
    assert "1 region to be ignored left out" in source.notes
    assert "1 region without a text left out" in source.notes
    with pytest.raises(DataError, match=r"page-0006\.png: its region lies outside the page of 200x100 pixels"):
        source.image(3)


def test_a_set_of_pages_becomes_a_set_of_crops_and_what_cannot_be_cut_is_counted(pages: Path, tmp_path: Path) -> None:
    report = convert(CropSource(open_source(SourceSpec(path=str(pages)))), tmp_path / "crops", "tsv")
    assert (report.samples, report.rejected) == (3, {"missing or not readable": 2})
    crops = open_source(SourceSpec(path=str(tmp_path / "crops")))
    assert [crops.target(index) for index in range(3)] == [Text("one"), Text("two"), Text("three")]


def test_a_set_of_texts_has_nothing_to_cut(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((9, 9, 3), np.uint8))
    (tmp_path / "labels.tsv").write_text("a.png\tx\n")
    with pytest.raises(ConfigError, match=r"--crop cuts regions out of pages, and a\.png of .* has text"):
        CropSource(open_source(SourceSpec(path=str(tmp_path))))
