"""The reading order of drawn layouts, each also when the page lies a little askew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.pages.geometry import facing
from inkmill.pages.order import reading_order, skew_of

HEIGHT, STEP = 20, 30
Box = tuple[float, float, float]


def column(left, top, widths):
    """Boxes (left, top, width) of lines over each other."""
    return [(left, top + STEP * row, width) for row, width in enumerate(widths)]


def table(lefts, top, rows, width):
    """Boxes row by row, as one reads a table."""
    return [(left, top + STEP * row, width) for row in range(rows) for left in lefts]


LAYOUTS = {
    "one column": column(50, 40, [600, 590, 600, 310, 600]),
    "two columns": [*column(50, 40, [380, 390, 370, 384, 200]), *column(500, 44, [390, 380, 390, 382])],
    "three columns": [
        *column(50, 40, [280, 270, 282, 150]),
        *column(370, 40, [280, 275, 280, 284]),
        *column(690, 40, [270, 280, 284, 90]),
    ],
    "header over columns": [
        (60, 20, 780),
        *column(50, 70, [380, 390, 370, 384]),
        *column(500, 70, [390, 380, 390, 382]),
    ],
    "columns, a line across, columns": [
        *column(50, 40, [380, 390, 370]),
        *column(500, 40, [390, 380, 390]),
        (50, 160, 840),
        *column(50, 210, [380, 390, 370]),
        *column(500, 210, [390, 380, 390]),
    ],
    "receipt": [(120, 20, 200), (90, 50, 260), *table([20, 340], 100, 6, 90), (150, 320, 120)],
    "receipt with long names": [
        box
        for row, width in enumerate([280, 240, 290, 250])
        for box in [(20, 40 + STEP * row, width), (350, 40 + STEP * row, 60)]
    ],
    "table of numbers": table([20, 160, 300, 440], 40, 5, 80),
}


def quads(boxes: list[Box], angle: float = 0.0):
    turn = np.radians(angle)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    corners = [np.array([[x, y], [x + w, y], [x + w, y + HEIGHT], [x, y + HEIGHT]]) for x, y, w in boxes]
    return [(one @ matrix.T).astype(np.float32) for one in corners]


@pytest.mark.parametrize("angle", [0.0, 2.5, -3.0, 8.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read_in_the_order_of_people(layout, angle):
    boxes = LAYOUTS[layout]
    shuffled = np.random.default_rng(3).permutation(len(boxes))
    places = reading_order([quads(boxes, angle)[index] for index in shuffled])
    assert [int(shuffled[place.line]) for place in places] == list(range(len(boxes)))


def test_lines_beside_each_other_in_a_receipt_share_a_row():
    places = reading_order(quads(LAYOUTS["receipt"]))
    by_row: dict[tuple[int, int], int] = {}
    for place in places:
        by_row[place.block, place.row] = by_row.get((place.block, place.row), 0) + 1
    assert sorted(by_row.values()) == [1, 1, 1, 2, 2, 2, 2, 2, 2]


def test_a_wide_white_stripe_begins_a_new_block():
    places = reading_order(quads([*column(50, 40, [300, 300]), *column(50, 200, [300, 300])]))
    assert [place.block for place in places] == [0, 0, 1, 1]


def test_a_bent_page_does_not_chain_its_rows():
    boxes = [(x, 40 + STEP * row + 0.06 * x, 90) for row in range(6) for x in range(0, 1000, 100)]
    places = reading_order(quads(boxes))
    assert [place.line for place in places] == list(range(len(boxes)))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 900), st.floats(0, 900), st.floats(5, 500)), min_size=1, max_size=30),
    st.floats(-20, 20),
)
def test_every_line_has_one_place_whatever_the_layout(boxes, angle):
    places = reading_order(quads(boxes, angle))
    assert sorted(place.line for place in places) == list(range(len(boxes)))
    assert [(place.block, place.row) for place in places] == sorted((place.block, place.row) for place in places)


@given(st.floats(-40, 40))
def test_the_skew_of_parallel_lines_is_their_angle(angle):
    assert skew_of(quads(LAYOUTS["one column"], angle)) == pytest.approx(angle, abs=0.05)


@given(st.floats(0, 360), st.integers(0, 3))
def test_corners_face_the_direction_they_are_asked_for_at_any_angle(angle, start):
    corners = np.roll(quads([(0, 0, 200)], angle)[0], start, axis=0)
    assert np.allclose(facing(corners, angle), quads([(0, 0, 200)], angle)[0])
