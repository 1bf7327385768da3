"""Areas of polygons and of their overlaps, for whole sets at once: what every score of a detector is made of.

A pair-by-pair loop over shapely's objects is where other evaluations lose their time: two pictures' worth of 109 boxes
took 185 ms so, and take 3 ms as arrays. A polygon that crosses itself is no reason to leave it out: it counts with the
area that it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.errors import MissingExtraError

try:
    import shapely
except ImportError:  # finding regions does without
    shapely = None

Points = NDArray[np.floating[Any]]
"""(N, 2): x and y of a region's corners, in pixels."""
Geometries = NDArray[np.object_]
"""shapely polygons."""


class Overlaps(NamedTuple):
    """The pairs of regions of one picture that overlap.

    Attributes:
        truth, found: int64 (P,), which region of each side; ascending by truth, then by found.
        area: float64 (P,), of the overlap, in square pixels; above 0.
        truth_areas, found_areas: float64 (T,), (F,), of each region.
    """

    truth: NDArray[np.int64]
    found: NDArray[np.int64]
    area: NDArray[np.float64]
    truth_areas: NDArray[np.float64]
    found_areas: NDArray[np.float64]

    @property
    def iou(self) -> NDArray[np.float64]:
        """float64 (P,): overlap over union."""
        return self.area / (self.truth_areas[self.truth] + self.found_areas[self.found] - self.area)

    @property
    def share_of_found(self) -> NDArray[np.float64]:
        """float64 (P,): the share of the found region that lies in the truth."""
        return self.area / self.found_areas[self.found]


def as_polygons(regions: Sequence[Points], whole_numbers: bool = False) -> Geometries:
    """Return regions as shapely polygons, repaired where they cross themselves.

    Args:
        regions: (N, 2) each, N >= 3.
        whole_numbers: cut the corners to whole pixels first, as the competition's script does.

    Raises:
        MissingExtraError: shapely is not installed.
    """
    if shapely is None:
        raise MissingExtraError("shapely", "train", "scoring found regions")
    if not regions:
        return np.empty(0, object)
    counts = [len(region) for region in regions]
    corners = np.concatenate([np.asarray(region, np.float64) for region in regions])
    if whole_numbers:
        corners = np.trunc(corners)
    rings = shapely.linearrings(corners, indices=np.repeat(np.arange(len(regions)), counts))
    polygons: Geometries = np.asarray(shapely.polygons(rings), object)
    broken = ~shapely.is_valid(polygons)
    if broken.any():
        polygons[broken] = shapely.make_valid(polygons[broken], method="structure", keep_collapsed=False)
    return polygons


def overlaps(truths: Sequence[Geometries], found: Sequence[Geometries]) -> list[Overlaps]:
    """Return the overlapping pairs of each picture, computed for all pictures together.

    Args:
        truths, found: of each picture its polygons.
    """
    # 1. Which boxes touch at all, picture by picture.
    pairs = [_touching(one, other) for one, other in zip(truths, found, strict=True)]
    # 2. The overlaps of all these pairs, in one call.
    left = _gathered(truths, [pair[0] for pair in pairs])
    right = _gathered(found, [pair[1] for pair in pairs])
    areas = np.asarray(shapely.area(shapely.intersection(left, right)), np.float64)
    # 3. Back to their pictures.
    ends = np.cumsum([len(pair[0]) for pair in pairs])
    result = []
    for one, other, (rows, columns), end in zip(truths, found, pairs, ends.tolist(), strict=True):
        area = areas[end - len(rows) : end]
        some = area > 0
        result.append(Overlaps(rows[some], columns[some], area[some], shapely.area(one), shapely.area(other)))
    return result


def _touching(truths: Geometries, found: Geometries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not len(truths) or not len(found):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows, columns = shapely.STRtree(found).query(truths)
    order = np.lexsort((columns, rows))
    return rows[order].astype(np.int64), columns[order].astype(np.int64)


def _gathered(groups: Sequence[Geometries], rows: Sequence[NDArray[np.int64]]) -> Geometries:
    parts = [group[some] for group, some in zip(groups, rows, strict=True)]
    return np.concatenate(parts) if parts else np.empty(0, object)


def points_inside(points: Points, polygons: Geometries) -> NDArray[np.bool_]:
    """Return which of P points lie within which of F polygons: bool (P, F)."""
    inside = np.zeros((len(points), len(polygons)), np.bool_)
    if inside.size:
        rows, columns = shapely.STRtree(polygons).query(shapely.points(points), predicate="within")
        inside[rows, columns] = True
    return inside


def areas_without(polygons: Geometries, cut: Geometries, others: Geometries) -> NDArray[np.float64]:
    """Return the overlap of each polygon, less what `cut` covers, with its counterpart in `others`: float64 (P,)."""
    left = shapely.difference(polygons, shapely.union_all(cut))
    return np.asarray(shapely.area(shapely.intersection(left, others)), np.float64)


def sides_of(regions: Sequence[Points]) -> NDArray[np.float32]:
    """Return the short and the long side of each region's tightest rectangle, of any angle: float32 (R, 2), pixels."""
    sides = [cv2.minAreaRect(np.asarray(region, np.float32))[1] for region in regions]
    return np.sort(np.array(sides, np.float32).reshape(-1, 2), axis=1)
