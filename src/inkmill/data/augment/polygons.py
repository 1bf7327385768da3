"""Polygons follow the picture: moved by the same numbers, clipped to it, and dropped when nothing useful is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.data.sample import Polygons

Points = NDArray[np.float32]

MIN_KEPT_AREA = 0.25
"""A region of which less than this share of its area is left in the picture is dropped: its text cannot be read."""
_STEPS = 8


class MovedPolygons(NamedTuple):
    """What became of an image's polygons.

    Attributes:
        polygons: those that are left, in their order.
        clipped: how many were cut at the border.
        dropped: how many are gone.
    """

    polygons: Polygons
    clipped: int
    dropped: int


def move_polygons(
    polygons: Polygons, matrix: NDArray[np.floating], width: int, height: int, waves: Points | None = None
) -> MovedPolygons:
    """Move polygons as a row of a table moves their image.

    Args:
        polygons: regions in pixels of the image before the change.
        matrix: the row's `space`, (3, 3), from output to input; the inverse is applied here.
        width: columns of the image.
        height: rows of the image.
        waves: the row's waves (K, 5), if it has any.

    Returns:
        The moved polygons, clipped to the image (Sutherland and Hodgman 1974), with counts.
    """
    inverse = np.linalg.inv(matrix.astype(np.float64))
    points: list[Points] = []
    ignore: list[bool] = []
    texts: list[str] = []
    clipped = 0
    for number, region in enumerate(polygons.points):
        moved = _unwave(_project(region.astype(np.float64), inverse), waves)
        inside = _clip(moved, width, height)
        if len(inside) < 3 or _area(inside) < max(MIN_KEPT_AREA * _area(moved), 1e-6):
            continue
        clipped += not np.array_equal(inside, moved)
        points.append(inside.astype(np.float32))
        ignore.append(polygons.ignore[number])
        texts.extend(polygons.texts[number : number + 1])
    left = Polygons(tuple(points), tuple(ignore), tuple(texts))
    return MovedPolygons(left, clipped, len(polygons.points) - len(points))


def _project(points: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    homogeneous = points @ matrix[:, :2].T + matrix[:, 2]
    # A point behind the horizon is far outside; a tiny depth keeps it there without dividing by zero.
    return homogeneous[:, :2] / np.maximum(homogeneous[:, 2:], 1e-6)


def _unwave(points: NDArray[np.float64], waves: Points | None) -> NDArray[np.float64]:
    """Find the output pixels that the waves move to the given places, by fixed-point iteration."""
    if waves is None:
        return points
    places = points
    for _ in range(_STEPS):  # waves never fold, so each step at least halves the error
        swing = np.sin(places @ waves[:, 2:4].T + waves[:, 4])
        places = points - swing @ waves[:, :2]
    return places


def _clip(points: NDArray[np.float64], width: int, height: int) -> NDArray[np.float64]:
    """Clip to the picture, whose pixels reach half a pixel around their centres."""
    for axis, limit, sign in ((0, -0.5, 1), (0, width - 0.5, -1), (1, -0.5, 1), (1, height - 0.5, -1)):
        inside: list[NDArray[np.float64]] = []
        depth = sign * (points[:, axis] - limit)
        for k in range(len(points)):
            if depth[k - 1] * depth[k] < 0:
                share = depth[k - 1] / (depth[k - 1] - depth[k])
                inside.append(points[k - 1] + share * (points[k] - points[k - 1]))
            if depth[k] >= 0:
                inside.append(points[k])
        points = np.array(inside).reshape(-1, 2)
    return points


def _area(points: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> float:
    x, y = np.asarray(points).T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)
