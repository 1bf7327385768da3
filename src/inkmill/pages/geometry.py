"""Rectangles of text and the one matrix between a page and a line's crop.

Points are (x, y) in float, x right, y down; a matrix is 3 x 3 and acts on columns (x, y, 1). Angles are degrees,
clockwise as seen on the page, for y points down.
"""

from __future__ import annotations

import math
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float32]
Matrix = NDArray[np.float64]


def rectangle(points: Points) -> Points:
    """Return the smallest rectangle around a polygon, float32 (4, 2), clockwise; a quad stays the quad it is.

    Args:
        points: (N, 2), N at least 3.
    """
    corners = points if len(points) == 4 and _is_convex(points) else cv2.boxPoints(cv2.minAreaRect(points))
    x, y = corners[:, 0], corners[:, 1]
    doubled_area = float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())
    return np.ascontiguousarray(corners if doubled_area >= 0 else corners[::-1], np.float32)


def _is_convex(points: Points) -> bool:
    return bool(cv2.isContourConvex(np.ascontiguousarray(points, np.float32)))


def facing(corners: Points, angle: float) -> Points:
    """Return clockwise corners so rotated that their first edge is the one nearest to a direction.

    Args:
        corners: (4, 2), clockwise.
        angle: of the direction, in degrees.
    """
    direction = np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
    edges = np.roll(corners, -1, axis=0) - corners
    along = edges @ direction / np.maximum(np.linalg.norm(edges, axis=1), 1e-6)
    return np.roll(corners, -int(along.argmax()), axis=0)


def sides(corners: Points) -> tuple[float, float]:
    """Return (width, height) of a quad: the means of its first and third, and of its second and fourth edge."""
    lengths = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
    return float(lengths[0] + lengths[2]) / 2, float(lengths[1] + lengths[3]) / 2


def edge_angle(corners: Points) -> float:
    """Return the angle of the first edge, -180..180 degrees."""
    x, y = (corners[1] - corners[0] + corners[2] - corners[3]).tolist()
    return math.degrees(math.atan2(y, x))


def to_crop(corners: Points, width: float, height: float) -> Matrix:
    """Return the matrix from the page to a crop of `width` x `height` whose corners are those of the quad."""
    goal = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    return cast(Matrix, cv2.getPerspectiveTransform(np.ascontiguousarray(corners, np.float32), goal))


def apply(matrix: Matrix, points: NDArray[np.floating]) -> Points:
    """Return points, (..., 2), moved by a matrix."""
    moved = points.astype(np.float64) @ matrix[:, :2].T + matrix[:, 2]
    return cast(Points, (moved[..., :2] / moved[..., 2:]).astype(np.float32))


def turned(width: int, height: int, rotation: int) -> Matrix:
    """Return the matrix from a page to that page turned back by `rotation` degrees, its corner at (0, 0) again.

    Args:
        width: of the page.
        height: of the page.
        rotation: 0, 90, 180 or 270: by how much its text is turned clockwise.
    """
    rows = {
        0: [[1, 0, 0], [0, 1, 0]],
        90: [[0, 1, 0], [-1, 0, width]],
        180: [[-1, 0, width], [0, -1, height]],
        270: [[0, -1, height], [1, 0, 0]],
    }[rotation]
    return np.array([*rows, [0, 0, 1]], np.float64)


def turn_pixels(pixels: NDArray[np.uint8], rotation: int) -> NDArray[np.uint8]:
    """Return an image turned back by `rotation` degrees: what runs from top to bottom at 90 is upright then."""
    return np.ascontiguousarray(np.rot90(pixels, rotation // 90))


def overlap(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the intersection over the smaller area of axis-parallel boxes, (N, M).

    Args:
        a: (N, 4), left, top, right, bottom.
        b: (M, 4).
    """
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(one[:, 2:] - one[:, :2], 0, None).prod(axis=1) for one in (a, b)]
    return cast("NDArray[np.float64]", shared / np.maximum(np.minimum(areas[0][:, None], areas[1][None]), 1e-6))


def bounds(points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return left, top, right, bottom of points, (..., N, 2) -> (..., 4)."""
    return np.concatenate([points.min(axis=-2), points.max(axis=-2)], axis=-1).astype(np.float64)
