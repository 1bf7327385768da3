"""What the detector's maps should show: from polygons to maps by exact signed distances; the reference, in NumPy.

    text       1 in the middle of a text (its kernel), 0 elsewhere; on the kernel's edge what the pixel covers of it
    counted    0 inside ignored text, else 1: what is there is neither right nor wrong
    threshold  DB's: 0.7 on the outline of a text, falling to 0.3 within D on both sides; 0 where it does not count

A text's kernel is what lies deeper inside of it than D. Two rules for D, each with its exact inverse in decode.py:

    inradius   D = share * inradius: the kernel is as high as (1 - share) of the text, whatever its length
    shrink     D = area * (1 - share ** 2) / perimeter: DB's rule (Liao et al. 2020), for which no one ratio undoes it

The signed distance is that of the whole polygon, also of what lies outside of the picture: clipping it first would add
an edge that is none, from which kernels recede. Self-crossing polygons are filled even-odd, as OpenCV does. The kernel
for GPUs is `inkmill.kernels.text_maps`; on a CPU this file is what trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
KernelRule = Literal["inradius", "shrink"]

GRID = 32
"""A region is measured at GRID x GRID places."""
ROUNDS = 3
"""Each round looks closer at the deepest place of the one before; the last ones are 3 / GRID times as far apart."""
MIN_AREA = 1.0
"""Square pixels; less is no region."""
OUTSIDE, TEXT, IGNORED = 0, 1, 2
"""What a region is to the maps."""
MEASURES = 6
"""Left, top, right, bottom of what it can reach; D; OUTSIDE, TEXT or IGNORED."""


@dataclass(frozen=True, slots=True)
class MapOptions:
    """How maps are made.

    Attributes:
        rule: for D, see the head of this file.
        share: of the inradius, or DB's r.
        min_height: regions lower than this are ignored (twice the inradius, pixels of the input).
        min_visible: regions of which a smaller share lies in the picture are ignored.
        stride: pixels of the input that a pixel of the maps covers, along each side.
    """

    rule: KernelRule = "inradius"
    share: float = 0.5
    min_height: float = 8.0
    min_visible: float = 0.5
    stride: int = 2


def text_maps(
    points: Floats,
    starts: NDArray[np.int32],
    pictures: NDArray[np.int32],
    ignore: NDArray[np.uint8],
    size: tuple[int, int],
    options: MapOptions,
) -> Floats:
    """Return the maps of a batch.

    Args:
        points: (P, 2), x and y in pixels of the input with centres at whole numbers; all regions one after the other.
        starts: (R + 1), the first point of each region, and P.
        pictures: (B + 1), the first region of each picture, and R.
        ignore: (R), 1 for regions that are neither right nor wrong to find.
        size: height and width of the input in pixels; multiples of the stride.
        options: how.

    Returns:
        (B, 3, height / stride, width / stride): text, counted, threshold.
    """
    height, width = (side // options.stride for side in size)
    maps = np.zeros((len(pictures) - 1, 3, height, width), np.float32)
    maps[:, 1] = 1
    measures = measure_regions(points, starts, ignore, size, options)
    for picture, one in enumerate(maps):
        for region in range(pictures[picture], pictures[picture + 1]):
            _add(one, points[starts[region] : starts[region + 1]], measures[region], options.stride)
    return maps


def picture_of(starts: NDArray[np.int32], pictures: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return of which picture each point is: int32 (P,)."""
    return np.repeat(np.arange(len(pictures) - 1, dtype=np.int32), np.diff(starts[pictures]))


def move_points(points: Floats, picture: NDArray[np.int32], matrices: NDArray[np.floating]) -> Floats:
    """Return points moved by the matrix of their picture: float32 (P, 2).

    Args:
        points: (P, 2).
        picture: (P,).
        matrices: (B, 3, 3), from where the points are to where they go; what is behind the horizon goes far away.
    """
    chosen = matrices[picture]
    moved = np.einsum("pij,pj->pi", chosen[:, :, :2], points) + chosen[:, :, 2]
    there: Floats = (moved[:, :2] / np.maximum(moved[:, 2:], 1e-6)).astype(np.float32)
    return there


def measure_regions(
    points: Floats, starts: NDArray[np.int32], ignore: NDArray[np.uint8], size: tuple[int, int], options: MapOptions
) -> Floats:
    """Return float32 (R, MEASURES): where each region can reach on the maps, its D, and what it is to them."""
    found = np.zeros((len(starts) - 1, MEASURES), np.float32)
    for region, measures in enumerate(found):
        polygon = points[starts[region] : starts[region + 1]]
        area, perimeter = area_and_perimeter(polygon)
        if not MIN_AREA <= area < np.inf:  # nor NaN
            continue
        low, high = polygon.min(axis=0), polygon.max(axis=0)
        if (high < -0.5).any() or low[0] > size[1] - 0.5 or low[1] > size[0] - 0.5:
            continue
        inradius, visible = _inradius(polygon, low, high, size)
        distance = options.share * inradius
        if options.rule == "shrink":
            distance = area * (1 - options.share**2) / perimeter
        small = 2 * inradius < options.min_height
        is_ignored = ignore[region] or small or visible < options.min_visible
        reach = max(distance, options.stride)
        measures[:] = *(low - reach), *(high + reach), distance, IGNORED if is_ignored else TEXT
    return found


def signed_distance(x: Floats, y: Floats, polygon: Floats) -> Floats:
    """Return how deep places lie inside a polygon, in pixels; negative outside (even-odd).

    Args:
        x, y: of the places, any shape.
        polygon: (N, 2).
    """
    squared, inside = np.full(x.shape, np.inf, np.float32), np.zeros(x.shape, np.bool_)
    for (ax, ay), (bx, by) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        # 1. The nearest place of the edge.
        dx, dy = bx - ax, by - ay
        along = np.clip(((x - ax) * dx + (y - ay) * dy) / max(dx * dx + dy * dy, np.float32(1e-12)), 0, 1)
        squared = np.minimum(squared, (x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2)
        # 2. Does a ray to the right cross it?
        if ay != by:
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) / (by - ay) * dx)
    distance = np.sqrt(squared)
    return np.where(inside, distance, -distance).astype(np.float32)


def area_and_perimeter(polygon: NDArray[np.floating]) -> tuple[float, float]:
    """Return the area inside a polygon (shoelace formula, any way round) and the length of its outline."""
    x, y = np.asarray(polygon, np.float64).T
    following = np.roll(x, -1), np.roll(y, -1)
    area = abs(float(np.dot(x, following[1]) - np.dot(y, following[0]))) / 2
    return area, float(np.hypot(following[0] - x, following[1] - y).sum())


def _inradius(polygon: Floats, low: Floats, high: Floats, size: tuple[int, int]) -> tuple[float, float]:
    """Return the radius of the largest circle inside, and the share of the region that lies in the picture."""
    places = (np.arange(GRID, dtype=np.float32) + 0.5) / GRID
    corner, sides = low, high - low
    deepest, visible = 0.0, 1.0
    for number in range(ROUNDS):
        x, y = np.meshgrid(corner[0] + sides[0] * places, corner[1] + sides[1] * places)
        depth = signed_distance(x.astype(np.float32), y.astype(np.float32), polygon)
        if number == 0:
            inside = depth > 0
            shown = (x >= -0.5) & (x <= size[1] - 0.5) & (y >= -0.5) & (y <= size[0] - 0.5)
            visible = (inside & shown).sum() / max(inside.sum(), 1)
        best = int(depth.argmax())
        deepest = max(deepest, float(depth.flat[best]))
        # One and a half steps to each side of the deepest place.
        sides = (sides * (3 / GRID)).astype(np.float32)
        corner = (np.array([x.flat[best], y.flat[best]]) - sides / 2).astype(np.float32)
    return deepest, float(visible)


def _add(maps: Floats, polygon: Floats, measures: Floats, stride: int) -> None:
    """Draw one region where it can reach."""
    left, top, right, bottom, distance, kind = measures.tolist()
    if kind == OUTSIDE:
        return
    height, width = maps.shape[1:]
    # Which pixels of the maps have their centres in the box: pixel k's is (k + 0.5) * stride - 0.5.
    first = [max(0, int(np.ceil((side + 0.5) / stride - 0.5))) for side in (top, left)]
    last = [min(int(np.floor((side + 0.5) / stride - 0.5)) + 1, n) for side, n in ((bottom, height), (right, width))]
    rows, columns = (np.arange(a, b, dtype=np.float32) for a, b in zip(first, last, strict=True))
    x, y = (
        grid.astype(np.float32) for grid in np.meshgrid((columns + 0.5) * stride - 0.5, (rows + 0.5) * stride - 0.5)
    )
    part = maps[:, first[0] : last[0], first[1] : last[1]]
    if not part.size:
        return
    depth = signed_distance(x.astype(np.float32), y.astype(np.float32), polygon)
    if kind == IGNORED:
        part[1][depth > 0] = 0
        return
    np.maximum(part[0], np.clip(0.5 + (depth - distance) / stride, 0, 1), out=part[0])
    threshold = 0.3 + 0.4 * np.clip(1 - np.abs(depth) / max(distance, 1e-6), 0, 1)
    np.maximum(part[2], np.where(depth > -distance, threshold, 0), out=part[2])
