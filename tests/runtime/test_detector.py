"""The detector that the package carries: it finds printed lines, gives their corners in order, and has its card."""

from __future__ import annotations

import cv2
import numpy as np

from inkmill import weights
from inkmill.data.types import Polygons
from inkmill.runtime import Detector
from inkmill.tasks.detection.metrics import match_regions


def printed_page(side: int = 400) -> tuple[np.ndarray, Polygons]:
    """Return a page of a few printed lines, and their boxes."""
    image, regions = np.full((side, side, 3), 235, np.uint8), []
    for number, text in enumerate(("Total amount 12.50", "Invoice No. 4711", "Thank you", "2026-11-23 10:31")):
        x, y = 30 + 15 * number, 70 + 80 * number
        (wide, high), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.9, 2)
        cv2.putText(image, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.9, (30, 30, 30), 2, cv2.LINE_AA)
        left, top, right, bottom = x, y - high - 1, x + wide, y + 3
        regions.append(np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32))
    return image, Polygons(tuple(regions), (False,) * len(regions))


def test_the_packages_own_detector_finds_printed_lines() -> None:
    image, truth = printed_page()
    (found,) = Detector(threads=1).detect([image])
    assert len(match_regions(truth, [region.points for region in found]).truth) >= 3
    for region in found:
        assert region.points.shape == (4, 2)
        assert region.points[0].sum() == region.points.sum(axis=1).min()
        assert 0.5 < region.score <= 1


def test_the_packages_own_detector_says_what_it_was_trained_on() -> None:
    file = weights.path("detector")
    assert file.stat().st_size <= weights.MAX_BYTES
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "CC BY 4.0" in card
    assert "SROIE" in card
    header = Detector(threads=1).reader.header
    assert header.task == "detection"
    assert header.provenance["licence"]["weights"] == "Apache-2.0"
