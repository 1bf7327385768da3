from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.synth.layout import Style, View, look_at, places_of, set_run
from inkmill.synth.params import EM_PIXELS


def numbers(value: float) -> np.ndarray:
    return np.array([value])


def view(**parts: object) -> View:
    chosen: dict = dict.fromkeys(("turn", "skew_x", "skew_y", "near_x", "near_y", "curvature", "upright"), numbers(0))
    chosen |= {"middle": numbers(1.5), "wave": (numbers(0), numbers(1), numbers(0)), "margins": (numbers(0),) * 4}
    return View(**(chosen | parts))


BOX = (numbers(0.0), numbers(-0.7), numbers(3.0), numbers(0.0))
SMALL = st.floats(-0.3, 0.3)


def image_to_plane(matrix: list, x: float, y: float) -> tuple[float, float]:
    u, v, w = (sum(part * place for part, place in zip(row, (x, y, 1), strict=True))[0] for row in matrix)
    assert w > 0
    return u / w, v / w


def test_an_untouched_view_shows_the_box_and_its_margins():
    matrix, aspect = look_at(np, view(), BOX)
    assert aspect == pytest.approx(3 / 0.7)
    assert image_to_plane(matrix, 0, 0) == pytest.approx((0, -0.7))
    assert image_to_plane(matrix, 1, 1) == pytest.approx((3, 0))
    matrix, _ = look_at(np, view(margins=tuple(map(numbers, (0.1, 0.2, 0.3, 0.4)))), BOX)
    assert image_to_plane(matrix, 0, 0) == pytest.approx((-0.07, -0.84))
    assert image_to_plane(matrix, 1, 1) == pytest.approx((3.21, 0.28))


@given(turn=SMALL, skew_x=SMALL, skew_y=SMALL, near_x=SMALL, near_y=SMALL, upright=st.sampled_from([-1, 0, 1]))
def test_every_corner_of_the_text_is_in_the_image_and_touches_its_edges(**parts: float):
    matrix, aspect = look_at(np, view(**{name: numbers(part) for name, part in parts.items()}), BOX)
    m = np.array([[entry[0] for entry in row] for row in matrix])
    corners = np.array([[u, v, 1] for u in (0, 3) for v in (-0.7, 0)])
    x, y, w = np.linalg.inv(m) @ corners.T
    places = np.stack([x / w, y / w])
    assert places.min() > -1e-6
    assert places.max() < 1 + 1e-6
    # All four edges are touched: nothing but the text decides the window.
    assert np.abs([*places.min(axis=1), *(places.max(axis=1) - 1)]).max() < 1e-6
    assert (aspect[0] < 1) == (parts["upright"] != 0)


def test_text_that_runs_down_the_image_starts_at_its_top_right():
    matrix, aspect = look_at(np, view(upright=numbers(1)), BOX)
    assert aspect == pytest.approx(0.7 / 3)
    assert image_to_plane(matrix, 1, 0) == pytest.approx((0, -0.7))
    assert image_to_plane(matrix, 0, 1) == pytest.approx((3, 0))
    matrix, _ = look_at(np, view(upright=numbers(-1)), BOX)
    assert image_to_plane(matrix, 0, 1) == pytest.approx((0, -0.7))


def test_an_arc_makes_the_window_higher_and_its_middle_touches_the_top():
    bent = view(curvature=numbers(0.5))
    matrix, aspect = look_at(np, bent, BOX)
    assert aspect < 3 / 0.7
    assert image_to_plane(matrix, 0.5, 0) == pytest.approx((1.5, -0.7), abs=0.02)


def test_a_narrow_letter_gets_an_image_of_some_width():
    _, aspect = look_at(np, view(), (numbers(0), numbers(-0.7), numbers(0.05), numbers(0)))
    assert aspect == pytest.approx(0.3)


@given(turn=st.floats(-1, 1), slant=SMALL, stretch=st.floats(0.6, 1.4), grow=st.floats(0.5, 2))
def test_a_place_undoes_stretch_slant_turn_and_size(turn: float, slant: float, stretch: float, grow: float):
    how = Style(numbers(0), numbers(stretch), numbers(slant), numbers(1.5))
    one = np.ones((1, 1))
    u, v, xu, xv, yu, yv, size, layer = (
        part[0, 0] for part in places_of(np, how, 2 * one, 0.5 * one, turn * one, grow * one, 0 * one)
    )
    x, y = 20.0, -30.0  # a point of the glyph, pixels of the atlas
    em = 1.5 * grow / EM_PIXELS
    across, down = em * (stretch * x - slant * y), em * y
    turned = np.cos(turn) * across - np.sin(turn) * down, np.sin(turn) * across + np.cos(turn) * down
    assert (u, v, size, layer) == pytest.approx((2, 0.5, 1.5 * grow, 0))
    assert xu * turned[0] + xv * turned[1] == pytest.approx(x)
    assert yu * turned[0] + yv * turned[1] == pytest.approx(y)


def test_a_run_adds_advances_and_tracking_and_its_box_is_that_of_its_ink():
    how = Style(numbers(0.1), numbers(2.0), numbers(0.0), numbers(1.0))
    advances = np.array([[0.5, 0.25, 0.6]])
    ink = np.array([[[0.05, -0.7, 0.45, 0.0], [0, 0, 0, 0], [0.1, -0.5, 0.5, 0.2]]])
    shown, drawn = np.array([[True, True, True]]), np.array([[True, False, True]])
    run = set_run(np, how, advances, ink, shown, drawn)
    np.testing.assert_allclose(run.pens, [[0, 1.1, 1.7]])
    assert run.width == pytest.approx(1.7 + 1.3)
    assert [part[0] for part in run.box] == pytest.approx([0.1, -0.7, 2.7, 0.2])
