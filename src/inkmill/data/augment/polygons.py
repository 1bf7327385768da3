"""Polygons follow the image: moved by the same params, clipped to it, and dropped when nothing useful is left."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.data.types import Polygons

Points = NDArray[np.float32]

MIN_KEPT_AREA = 0.25
"""A region of which less than this share of its area is left in the image is dropped: its text cannot be read."""
_STEPS = 8
_BENDS = 16  # pieces of an edge where waves bend it
_NO_AREA = 1e-6  # square pixels

DropReason = Literal["degenerate", "outside", "mostly outside"]
"""Why a region is dropped: it has no area, fewer than three points or one that is not finite; it left the image;
less than MIN_KEPT_AREA of it stayed."""


class MovedPolygons(NamedTuple):
    """An image's polygons after a move.

    Attributes:
        polygons: those that are left, in their order, with their ignore flags and texts.
        clipped: how many were cut at the border.
        reasons: how many were dropped, by reason.
    """

    polygons: Polygons
    clipped: int
    reasons: Counter[DropReason]

    @property
    def dropped(self) -> int:
        """How many were dropped."""
        return self.reasons.total()


def move_polygons(
    polygons: Polygons, matrix: NDArray[np.floating], width: int, height: int, waves: Points | None = None
) -> MovedPolygons:
    """Move polygons as augmentation params move their image.

    Args:
        polygons: regions in pixels of the image before augmentation.
        matrix: the image's `space`, (3, 3), from output to input; the inverse is applied here.
        width: columns of the image.
        height: rows of the image.
        waves: the image's waves (K, 5), if there are any. They bend edges, which therefore get points in between.

    Returns:
        The moved polygons, clipped to the image (Sutherland and Hodgman 1974), with counts.
    """
    # Params lead from the output to the input, for engines fetch pixels; points go the other way.
    inverse = np.linalg.inv(matrix.astype(np.float64))
    if waves is not None and not waves[:, :2].any():
        waves = None
    left: list[tuple[Points, bool, tuple[str, ...]]] = []
    clipped = 0
    reasons = Counter[DropReason]()
    for number, region in enumerate(polygons.points):
        # 1. Move its points back along the map from output to input; along waves, many points an edge.
        if not _has_area(region):
            reasons["degenerate"] += 1
            continue
        moved = _project(region, inverse) if waves is None else _unwave(_project(_divided(region), inverse), waves)
        inside = _clip(moved, width, height)
        # 2. Drop it if too little of it is left to read.
        area = _area(inside)
        if area < max(MIN_KEPT_AREA * _area(moved), _NO_AREA):
            reasons["mostly outside" if area else "outside"] += 1
            continue
        clipped += inside is not moved
        left.append((inside.astype(np.float32), polygons.ignore[number], polygons.texts[number : number + 1]))
    # 3. Texts may be fewer than regions: detection data often has none.
    points, ignore, texts = zip(*left, strict=True) if left else ((), (), ())
    return MovedPolygons(Polygons(points, ignore, tuple(text for some in texts for text in some)), clipped, reasons)


def _has_area(region: Points) -> bool:
    return len(region) >= 3 and bool(np.isfinite(region).all()) and _area(region) > _NO_AREA


def _divided(region: Points) -> Points:
    """Divide each edge into _BENDS pieces."""
    share = np.arange(_BENDS, dtype=np.float32)[:, None] / _BENDS
    pieces = region[:, None] * (1 - share) + np.roll(region, -1, axis=0)[:, None] * share
    return pieces.reshape(-1, 2).astype(np.float32)


def _project(points: Points, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    homogeneous = points @ matrix[:, :2].T + matrix[:, 2]
    # A point behind the horizon is far outside; a tiny w keeps it there without dividing by zero.
    return homogeneous[:, :2] / np.maximum(homogeneous[:, 2:], 1e-6)


def _unwave(points: NDArray[np.float64], waves: Points) -> NDArray[np.float64]:
    """Find the output pixels that the waves move to the given places, by fixed-point iteration."""
    places = points
    for _ in range(_STEPS):  # waves never fold, so each step at least halves the error
        sines = np.sin(places @ waves[:, 2:4].T + waves[:, 4])
        places = points - sines @ waves[:, :2]
    return places


def _clip(points: NDArray[np.float64], width: int, height: int) -> NDArray[np.float64]:
    """Clip to the image, whose pixels reach half a pixel around their centres; a polygon inside is returned itself."""
    if (points >= -0.5).all() and (points <= (width - 0.5, height - 0.5)).all():
        return points
    for axis, limit, sign in ((0, -0.5, 1), (0, width - 0.5, -1), (1, -0.5, 1), (1, height - 0.5, -1)):
        inside: list[NDArray[np.float64]] = []
        # Sutherland and Hodgman: keep what is inside, and add a point where an edge crosses the border.
        inwards = sign * (points[:, axis] - limit)
        for k in range(len(points)):
            if inwards[k - 1] * inwards[k] < 0:
                share = inwards[k - 1] / (inwards[k - 1] - inwards[k])
                inside.append(points[k - 1] + share * (points[k] - points[k - 1]))
            if inwards[k] >= 0:
                inside.append(points[k])
        points = np.array(inside).reshape(-1, 2)
    return points


def _area(points: NDArray[np.floating]) -> float:
    """Return the area inside a polygon, whichever way round (shoelace formula)."""
    if len(points) < 3:
        return 0.0
    x, y = np.asarray(points, np.float64).T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)
