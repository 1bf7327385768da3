from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.data.augment import Augmentation, apply_cv, move_polygons
from inkmill.data.augment.ops import parse_ops
from inkmill.data.types import Polygons

WIDTH, HEIGHT = 160, 120


def one(*corners: tuple[float, float], text: str = "a") -> Polygons:
    return Polygons((np.array(corners, np.float32),), (False,), (text,))


@pytest.mark.parametrize("seed", range(6))
def test_a_painted_polygon_lies_where_its_picture_went(seed: int) -> None:
    """Paint a polygon and move the picture; move the polygon and paint it: the two pictures agree."""
    shape = one((50, 40), (110, 45), (100, 80), (55, 75))
    painted = np.zeros((1, HEIGHT, WIDTH, 1), np.uint8)
    cv2.fillPoly(painted[0], [shape.points[0].astype(np.int32)], 255)
    changes = parse_ops(
        [{"op": "rotate", "degrees": 20}, {"op": "shear"}, {"op": "scale"}, {"op": "perspective"}, {"op": "elastic"}]
    )
    params = Augmentation(changes).sample(seed, 0, np.arange(1), HEIGHT, WIDTH)
    moved = move_polygons(shape, params.space[0], WIDTH, HEIGHT, params.waves[0])
    repainted = np.zeros((HEIGHT, WIDTH), np.uint8)
    cv2.fillPoly(repainted, [np.rint(moved.polygons.points[0]).astype(np.int32)], 255)
    picture = apply_cv(painted, params)[0, :, :, 0] > 127
    both, either = (picture & (repainted > 0)).sum(), (picture | (repainted > 0)).sum()
    assert both / either > 0.93
    assert moved.dropped == moved.clipped == 0


def test_what_leaves_the_picture_is_clipped_or_dropped_and_counted() -> None:

    def square(x: float, y: float) -> np.ndarray:
        return np.array([[x, y], [x + 20, y], [x + 20, y + 20], [x, y + 20]], np.float32)

    three = Polygons((square(50, 50), square(135, 50), square(142, 90)), (False, True, False), ("in", "edge", "out"))
    right = np.array([[1, 0, -15], [0, 1, 0], [0, 0, 1]], np.float32)  # the picture moves 15 pixels to the right
    moved = move_polygons(three, right, WIDTH, HEIGHT)
    assert moved.polygons.texts == ("in", "edge")
    assert moved.polygons.ignore == (False, True)
    assert (moved.clipped, moved.dropped) == (1, 1)
    assert moved.polygons.points[0].tolist() == square(65, 50).tolist()
    assert moved.polygons.points[1][:, 0].max() == WIDTH - 0.5


def test_no_change_keeps_polygons_as_they_are() -> None:
    shape = one((10, 10), (30, 12), (28, 33))
    moved = move_polygons(shape, np.eye(3), WIDTH, HEIGHT)
    assert np.allclose(moved.polygons.points[0], shape.points[0])
    assert (moved.clipped, moved.dropped) == (0, 0)


def test_polygons_without_texts_and_images_without_polygons_pass() -> None:
    bare = Polygons((np.array([[1, 1], [9, 1], [9, 9]], np.float32),), (True,))
    assert move_polygons(bare, np.eye(3), WIDTH, HEIGHT).polygons.texts == ()
    assert move_polygons(Polygons((), ()), np.eye(3), WIDTH, HEIGHT).polygons.points == ()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(-500, 500), st.floats(-500, 500)), min_size=3, max_size=8), st.integers(0, 1000))
def test_whatever_is_left_lies_in_the_picture(corners: list[tuple[float, float]], seed: int) -> None:
    changes = parse_ops([{"op": "rotate", "degrees": 180}, {"op": "perspective"}, {"op": "scale", "factor": [0.5, 2]}])
    params = Augmentation(changes).sample(seed, 0, np.arange(1), HEIGHT, WIDTH)
    moved = move_polygons(one(*corners), params.space[0], WIDTH, HEIGHT)
    assert len(moved.polygons.points) + moved.dropped == 1
    for points in moved.polygons.points:
        assert points.min() >= -0.501
        assert points[:, 0].max() <= WIDTH - 0.499
        assert points[:, 1].max() <= HEIGHT - 0.499
