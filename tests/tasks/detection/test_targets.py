"""The maps that a detector learns: by exact distances, beside pyclipper's, and what is ignored."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.tasks.detection.targets import (
    MapOptions,
    area_and_perimeter,
    measure_regions,
    move_points,
    picture_of,
    signed_distance,
    text_maps,
)

SIZE = (96, 128)
WHOLE = MapOptions(stride=1)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def turned(centre: tuple[float, float], wide: float, high: float, degrees: float) -> np.ndarray:
    return cv2.boxPoints((centre, (wide, high), degrees))


def maps_of(*regions: np.ndarray, ignore: tuple[int, ...] = (), options: MapOptions = WHOLE) -> np.ndarray:
    points = np.concatenate([np.zeros((0, 2), np.float32), *regions])
    starts = np.cumsum([0, *map(len, regions)]).astype(np.int32)
    pictures = np.array([0, len(regions)], np.int32)
    flags = np.array(ignore or [0] * len(regions), np.uint8)
    return text_maps(points, starts, pictures, flags, SIZE, options)[0]


def test_the_kernel_of_a_rectangle_leaves_out_a_share_of_its_inradius_on_every_side() -> None:
    text, counted, _ = maps_of(box(19.5, 29.5, 99.5, 49.5))
    assert text[35:45, 25:95].min() == 1
    assert text.sum() == pytest.approx(70 * 10, rel=1e-3)
    assert counted.min() == 1


def test_the_shrink_rule_moves_sides_by_area_over_perimeter() -> None:
    region = box(19.5, 29.5, 99.5, 49.5)
    area, perimeter = area_and_perimeter(region)
    distance = area * (1 - 0.4**2) / perimeter
    text, _, _ = maps_of(region, options=MapOptions("shrink", 0.4, stride=1))
    # Corners cover their pixels in two directions at once, which a distance alone does not say.
    assert text.sum() == pytest.approx((80 - 2 * distance) * (20 - 2 * distance), abs=1)


def test_the_threshold_falls_from_the_outline_to_both_sides() -> None:
    _, _, threshold = maps_of(box(20, 30, 100, 50))
    assert threshold[30, 60] == pytest.approx(0.7, abs=1e-3)
    assert threshold[35, 60] == pytest.approx(0.3, abs=1e-3)
    assert threshold[28, 60] == pytest.approx(0.7 - 0.4 * 2 / 5, abs=1e-3)
    assert threshold[40, 60] == pytest.approx(0.3, abs=1e-3)
    assert threshold[25, 60] == 0
    assert threshold[0, 0] == 0


def test_maps_at_half_size_say_what_share_of_a_pixel_is_kernel() -> None:
    whole = maps_of(box(20.3, 30.1, 100.9, 50.7))[0]
    half = maps_of(box(20.3, 30.1, 100.9, 50.7), options=MapOptions(stride=2))[0]
    assert half.shape == (SIZE[0] // 2, SIZE[1] // 2)
    mean = cv2.resize(whole, half.shape[::-1], interpolation=cv2.INTER_AREA)
    inner = np.ones_like(half, np.bool_)
    inner[[16, 17, 22, 23], :] = False
    assert np.abs(half - mean)[:, 20:40].max() < 0.01
    assert half.sum() * 4 == pytest.approx(whole.sum(), rel=0.01)


@pytest.mark.parametrize(
    ("region", "flag"),
    [
        (box(20, 30, 100, 50), 1),
        (box(20, 30, 100, 36), 0),
        (box(-60, 30, 40, 50), 0),
        (box(110, 30, 160, 50), 0),
    ],
    ids=["marked", "low", "cut on the left", "cut on the right"],
)
def test_text_that_is_marked_low_or_half_cut_is_ignored_and_never_background(region: np.ndarray, flag: int) -> None:
    text, counted, threshold = maps_of(region, ignore=(flag,))
    assert text.max() == 0
    assert threshold.max() == 0
    y, x = np.mgrid[: SIZE[0], : SIZE[1]].astype(np.float32)
    inside = signed_distance(x, y, region) > 0
    assert inside.any()
    assert (counted[inside] == 0).all()
    assert (counted[~inside] == 1).all()


def test_text_that_is_cut_a_little_keeps_the_kernel_of_the_whole() -> None:
    text, counted, _ = maps_of(box(-20.5, 29.5, 59.5, 49.5))
    assert text[35:45, 0].min() == 1  # the picture's border is no edge of the text
    assert counted.min() == 1


def test_regions_without_area_or_outside_or_not_finite_leave_no_trace() -> None:
    far, flat = box(200, 30, 300, 50), box(20, 30, 100, 30)
    broken = np.full((4, 2), np.nan, np.float32)
    text, counted, threshold = maps_of(far, flat, broken)
    assert text.max() == 0
    assert counted.min() == 1
    assert threshold.max() == 0


def test_a_picture_without_regions_is_all_background() -> None:
    maps = maps_of()
    assert maps[0].max() == 0
    assert maps[1].min() == 1


def test_a_self_crossing_region_is_filled_as_opencv_fills_it() -> None:
    bow = np.array([[20, 20], [100, 80], [100, 20], [20, 80]], np.float32)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]].astype(np.float32)
    filled = np.zeros(SIZE, np.uint8)
    cv2.fillPoly(filled, [bow.astype(np.int32)], 1)
    depth = signed_distance(x, y, bow)
    sure = np.abs(depth) > 1
    assert ((depth > 0) == filled.astype(bool))[sure].all()


@given(
    st.tuples(st.floats(30, 90), st.floats(30, 60)),
    st.floats(20, 90),
    st.floats(10, 40),
    st.floats(0, 180),
)
def test_the_inradius_of_a_rectangle_is_half_its_short_side(
    centre: tuple[float, float], wide: float, high: float, degrees: float
) -> None:
    region = turned(centre, wide, high, degrees)
    measures = measure_regions(
        region, np.array([0, 4], np.int32), np.zeros(1, np.uint8), SIZE, MapOptions(min_visible=0.0)
    )
    assert measures[0, 4] == pytest.approx(min(wide, high) / 4, rel=0.02)


@pytest.mark.parametrize("degrees", [0, 17, 45])
@pytest.mark.parametrize("high", [16, 40])
def test_pyclippers_kernel_is_the_same_but_for_its_whole_numbers(degrees: float, high: float) -> None:
    """Its corners are cut to whole numbers on both ways, and OpenCV paints the outline too: half a pixel each."""
    import pyclipper

    region = turned((64, 48), 80, high, degrees)
    area, perimeter = area_and_perimeter(region)
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(region.astype(np.int64).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    (path,) = offset.Execute(-area * (1 - 0.4**2) / perimeter)
    theirs = np.zeros(SIZE, np.uint8)
    cv2.fillPoly(theirs, [np.array(path, np.int32)], 1)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]].astype(np.float32)
    # The truth moved by half a pixel to the upper left, and half a pixel larger all around.
    ours = signed_distance(x + 0.5, y + 0.5, region) > area * (1 - 0.4**2) / perimeter - 0.5
    both, either = (ours & (theirs > 0)).sum(), (ours | (theirs > 0)).sum()
    assert both / either > (0.9 if high > 20 else 0.75)
    exact = signed_distance(x, y, region) > area * (1 - 0.4**2) / perimeter
    assert theirs.sum() >= exact.sum()


def test_points_move_by_the_matrix_of_their_picture() -> None:
    starts, pictures = np.array([0, 3, 7, 10], np.int32), np.array([0, 1, 3], np.int32)
    picture = picture_of(starts, pictures)
    assert picture.tolist() == [0] * 3 + [1] * 7
    points = np.random.default_rng(0).uniform(0, 50, (10, 2)).astype(np.float32)
    matrices = np.array([np.eye(3), [[2, 0, 5], [0, 3, -1], [0.01, 0, 1]]], np.float32)
    moved = move_points(points, picture, matrices)
    expected = cv2.perspectiveTransform(points[None, 3:], matrices[1])[0]
    np.testing.assert_allclose(moved[:3], points[:3])
    np.testing.assert_allclose(moved[3:], expected, rtol=1e-5)
