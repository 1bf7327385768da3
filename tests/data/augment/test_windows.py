"""Parts of larger pictures: drawn near text, without cutting it where that can be, the same wherever they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.ops import parse_ops
from inkmill.data.augment.windows import boxes_of, draw_windows, text_boxes
from inkmill.data.types import Labels, Polygons
from inkmill.errors import ConfigError

SIZE = (200, 300)


def draw(op, pages, boxes=None, epoch=0):
    """Return left, top, right and bottom of each part, (B, 4), in pixels of the kept pictures."""
    pages = np.asarray(pages, np.int64)
    boxes = [np.empty((0, 4), np.float32)] * len(pages) if boxes is None else boxes
    augmentation = Augmentation(parse_ops([op] if op else [])).for_windows()
    texts = text_boxes(boxes, np.ones((len(pages), 2)))
    x, y, across, down = draw_windows(augmentation, 0, epoch, np.arange(len(pages)), pages, SIZE, texts)
    half = np.array([SIZE[1] * across / 2, SIZE[0] * down / 2]).T
    centre = np.stack([x, y], axis=1) + 0.5
    return np.concatenate([centre - half, centre + half], axis=1)


def test_without_a_crop_the_whole_picture_is_shown_in_the_middle():
    assert draw(None, [(400, 600), (100, 100)]) == pytest.approx(np.array([[0, 0, 600, 400], [-100, -50, 200, 150]]))


@given(st.lists(st.tuples(st.integers(50, 900), st.integers(50, 900)), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_part_lies_in_the_picture_or_around_it(pages, epoch):
    rows, columns = np.array(pages).T
    found = draw({"op": "crop", "scale": [0.3, 2]}, pages, epoch=epoch)
    for low, high, side in ((found[:, 0], found[:, 2], columns), (found[:, 1], found[:, 3], rows)):
        assert (np.minimum(low, side - high) >= np.minimum(0, side - (high - low)) - 1e-6).all()
    scale = SIZE[1] / (found[:, 2] - found[:, 0])
    assert (scale >= 0.3 - 1e-9).all()
    assert (scale <= 2 + 1e-9).all()
    assert SIZE[0] / (found[:, 3] - found[:, 1]) == pytest.approx(scale)


def test_parts_hold_the_middle_of_a_text():
    boxes = [np.array([[900, 700, 960, 720]], np.float32)] * 32
    found = draw({"op": "crop", "scale": [1, 2], "about_text": 1}, [(1000, 1200)] * 32, boxes)
    assert ((found[:, 0] <= 930) & (found[:, 2] >= 930) & (found[:, 1] <= 710) & (found[:, 3] >= 710)).all()
    assert len({tuple(row) for row in found.round(3).tolist()}) == 32, "each epoch and sample has its own"


def test_more_tries_cut_fewer_texts():
    lines = np.array([[50, 40 * k, 250, 40 * k + 20] for k in range(20)], np.float32)

    def cuts(tries):
        op = {"op": "crop", "scale": [1, 1], "tries": tries}
        found = draw(op, [(800, 300)] * 64, [lines] * 64)
        top, bottom = found[:, 1, None], found[:, 3, None]
        touched = (lines[:, 3] > top) & (lines[:, 1] < bottom)
        return int((touched & ~((lines[:, 1] >= top) & (lines[:, 3] <= bottom))).sum())

    assert 5 * cuts(16) < cuts(1)


def test_random_resized_crops_have_the_area_and_aspect_that_are_asked_for():
    op = {"op": "random_resized_crop", "area": [0.2, 0.4], "aspect": [0.5, 2]}
    left, top, right, bottom = draw(op, [(600, 600)] * 200).T
    area, aspect = (right - left) * (bottom - top) / 600**2, (right - left) / (bottom - top)
    assert 0.2 <= area.min() < 0.22 < 0.38 < area.max() <= 0.4
    assert 0.5 <= aspect.min() < 0.6 < 1.7 < aspect.max() <= 2
    assert min(left.min(), top.min()) >= 0
    assert max(right.max(), bottom.max()) <= 600


def test_boxes_are_those_of_the_texts_to_find():
    slanted = np.array([[10, 20], [30, 10], [40, 30]], np.float32)
    target = Polygons((slanted, slanted + 5), (False, True))
    assert boxes_of(target).tolist() == [[10, 10, 40, 30]]
    assert boxes_of(Labels(("a",))).shape == (0, 4)


def test_ops_that_no_matrix_tells_are_refused():
    with pytest.raises(ConfigError, match="curve and elastic"):
        Augmentation(parse_ops([{"op": "curve"}])).for_windows()
