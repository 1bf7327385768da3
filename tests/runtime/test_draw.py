"""Regions drawn into pictures that were only read."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError
from inkmill.runtime.draw import drawn
from inkmill.tasks.classification.task import Classification
from inkmill.tasks.detection.decode import Region, Regions
from inkmill.tasks.detection.task import Detection

BOX = np.array([[10, 20], [80, 20], [80, 44], [10, 44]], np.float32)


def test_pictures_of_one_name_are_both_written_with_their_regions(tmp_path: Path) -> None:
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / "p.png"), np.full((60, 100, 3), 200, np.uint8))
        found.append(Regions((Region(BOX, 0.9),), key=str(tmp_path / folder / "p.png")))
    passed = list(drawn(found, Detection(ModelSpec()), tmp_path / "out"))
    assert passed == found
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["p-2.jpg", "p.jpg"]
    picture = cv2.imread(str(tmp_path / "out" / "p.jpg"))
    assert picture is not None
    blue, green, red = picture[20, 40].astype(int)
    assert green > blue + 50
    assert green > red + 50
    assert abs(picture[30, 40].astype(int) - 200).max() < 20


def test_what_finds_no_regions_draws_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a classifier finds no regions to draw"):
        drawn([], Classification(ModelSpec(), ["a"]), tmp_path)
