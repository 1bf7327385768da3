"""From the detector's map back to regions: the exact inverse of targets.py, without any unclip ratio to guess.

    1. The map, as bytes, at the input's size: what is between its pixels is linear.
    2. Outer contours of what is above the threshold; the largest ones, if there are too many.
    3. Score: the mean of the map within the contour.
    4. Each kernel grows by the D that it was shrunk by: found from the kernel itself, by the same rule.
    5. From pixels of the input to pixels of the picture.

With the inradius rule a kernel of half height q / 2 was shrunk by q / 2 * share / (1 - share). With DB's rule D solves
D * L(D) = (1 - r^2) * A(D) for the area and the perimeter of the grown rectangle, a quadratic equation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.pages import PageResize
from inkmill.machine import physical_cores
from inkmill.tasks.base import Decoder, Outputs
from inkmill.tasks.detection.targets import Floats, KernelRule

PROBABILITIES = "probabilities"
RegionShape = Literal["quad", "polygon"]

MAX_WHOLE = 1 << 25
"""Pixels of a map at the input's size; a larger one is looked at as it is."""
_LEAST_SIDE = 2.0  # pixels of the input; a kernel has no smaller height
_SIMPLER = 0.1  # of D: how far an outline may move where corners are left out


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How regions are found on a map.

    Attributes:
        rule, share: as the maps were made; see MapOptions.
        threshold: what is above it is text, 0..1.
        box_threshold: regions with a lower score are left out.
        shape: "quad" gives the smallest turned rectangle, "polygon" the outline.
        max_regions: of a picture; the smallest of more are left out, and counted.
    """

    rule: KernelRule = "inradius"
    share: float = 0.5
    threshold: float = 0.5
    box_threshold: float = 0.5
    shape: RegionShape = "quad"
    max_regions: int = 1000


@dataclass(frozen=True, slots=True)
class Region:
    """A place with text.

    Attributes:
        points: float32 (N, 2), x and y in pixels of the displayed picture, centres at whole numbers, clockwise; of a
            quad the first is the upper left corner.
        score: how sure the model is, 0..1.
    """

    points: Floats
    score: float


@dataclass(frozen=True, slots=True)
class Regions:
    """What a detector finds in one picture.

    Attributes:
        found: the regions, the largest kernel first.
        left_out: how many there were beyond `max_regions`.
        key: see `Prediction`.
    """

    found: tuple[Region, ...]
    left_out: int = 0
    key: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return how many there are, each with its points rounded to a tenth of a pixel, and how many were left out."""
        regions = [
            {"points": np.round(one.points.astype(np.float64), 1).tolist(), "score": round(one.score, 4)}
            for one in self.found
        ]
        return {"count": len(self.found), "regions": regions, "left_out": self.left_out}


class MapDecoder(Decoder):
    """From maps to regions.

    Args:
        options: how.
        resize: how pictures meet the model's input, which leads back to their pixels.
    """

    needs = (PROBABILITIES,)

    def __init__(self, options: DecodeOptions, resize: PageResize) -> None:
        self.options, self.resize = options, resize
        self.notes = () if options.shape == "quad" else ("regions as polygons",)

    def decode(self, outputs: Outputs, sizes: NDArray[np.int32] | None = None) -> Sequence[Regions]:
        """See Decoder.decode; the pictures of a batch are shared by threads, in which OpenCV works."""
        maps = as_bytes(outputs[PROBABILITIES])
        scales = [(1.0, 1.0)] * len(maps) if sizes is None else [self._scale(*size) for size in sizes.tolist()]
        if len(maps) == 1:
            return [find_regions(maps[0], self.options, scales[0])]
        rows = _threads().map(lambda row: find_regions(row[0], self.options, row[1]), zip(maps, scales, strict=True))
        return list(rows)

    def _scale(self, width: int, height: int) -> tuple[float, float]:
        """Return how many of the picture's pixels one of the input's is, along x and y."""
        columns, rows = self.resize.page_size(width, height)
        return width / columns, height / rows


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(physical_cores(), thread_name_prefix="regions")


def as_bytes(maps: NDArray[Any]) -> NDArray[np.uint8]:
    """Return maps of 0..1 as bytes."""
    if maps.dtype == np.uint8:
        return maps
    found: NDArray[np.uint8] = (np.clip(maps, 0, 1) * 255 + 0.5).astype(np.uint8)
    return found


def find_regions(
    one: NDArray[np.uint8], options: DecodeOptions, scale: tuple[float, float] = (1.0, 1.0), stride: int = 2
) -> Regions:
    """Return the regions of one map.

    Args:
        one: (h, w), the map as bytes.
        options: how.
        scale: pixels of the picture to one of the input, along x and y.
        stride: pixels of the input to one of the map.
    """
    # 1. At the input's size. Pixel k of the map has its centre at (k + 0.5) * stride - 0.5, which is OpenCV's own rule.
    if one.size * stride * stride > MAX_WHOLE:
        scale, stride = (scale[0] * stride, scale[1] * stride), 1
    whole = cv2.resize(one, None, fx=stride, fy=stride, interpolation=cv2.INTER_LINEAR) if stride > 1 else one
    _, kernels = cv2.threshold(whole, options.threshold * 255, 255, cv2.THRESH_BINARY)
    # 2. Outer contours: the rim of a hole is no region, but what lies in a hole may be one.
    contours, tree = cv2.findContours(kernels, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    outer = [] if tree is None else [c for c, row in zip(contours, tree[0], strict=True) if row[3] < 0]
    left_out = max(0, len(outer) - options.max_regions)
    if left_out:
        outer = sorted(outer, key=cv2.contourArea, reverse=True)[: options.max_regions]
    found = []
    for contour in outer:
        # 3. The smallest rectangle tells first whether there is anything; a contour runs through centres of pixels.
        (x, y), (wide, high), angle = cv2.minAreaRect(contour)
        wide, high = wide + 1, high + 1
        if min(wide, high) < _LEAST_SIDE:
            continue
        # 4. Its score.
        score = _mean_within(whole, contour)
        if score < options.box_threshold * 255:
            continue
        # 5. Grown, and in the picture's pixels.
        if options.shape == "quad":
            grow = growth(options, wide, high)
            points = _corners(x, y, wide + 2 * grow, high + 2 * grow, angle)
        else:
            points = _grown_outline(contour, options)
        points = (points + 0.5) * np.array(scale, np.float32) - 0.5
        found.append((wide * high, Region(_clockwise(points), score / 255)))
    found.sort(key=lambda pair: -pair[0])
    return Regions(tuple(region for _, region in found), left_out)


def growth(options: DecodeOptions, wide: float, high: float) -> float:
    """Return the D by which a rectangle was shrunk to a kernel of this size, in the same pixels."""
    if options.rule == "inradius":
        return min(wide, high) / 2 * options.share / (1 - options.share)
    return _undo_shrink(wide * high, 2 * (wide + high), options.share)


def _undo_shrink(area: float, perimeter: float, share: float) -> float:
    """Return DB's D from a kernel's area and perimeter: 4 (1 - c) D^2 + r^2 L / 2 D - c A = 0, c = (1 - r^2) / 2."""
    c, linear = (1 - share**2) / 2, share**2 * perimeter / 2
    return (-linear + math.sqrt(linear**2 + 16 * (1 - c) * c * area)) / (8 * (1 - c))


def _mean_within(whole: NDArray[Any], contour: NDArray[Any]) -> float:
    x, y, wide, high = cv2.boundingRect(contour)
    mask = np.zeros((high, wide), np.uint8)
    cv2.drawContours(mask, [contour], 0, 1, cv2.FILLED, offset=(-x, -y))
    return float(cv2.mean(whole[y : y + high, x : x + wide], mask)[0])


def _corners(x: float, y: float, wide: float, high: float, angle: float) -> Floats:
    return np.asarray(cv2.boxPoints(((x, y), (wide, high), angle)), np.float32)


def _grown_outline(contour: NDArray[Any], options: DecodeOptions) -> Floats:
    """Return the outline of a kernel grown by its D: of all places at most that far away from it."""
    # 1. The kernel alone, and how deep it is.
    x, y, wide, high = cv2.boundingRect(contour)
    mask = np.zeros((high + 2, wide + 2), np.uint8)
    cv2.drawContours(mask, [contour], 0, 1, cv2.FILLED, offset=(1 - x, 1 - y))
    if options.rule == "inradius":
        depth = float(cv2.distanceTransform(mask, cv2.DIST_L2, 5).max()) - 0.5
        grow = depth * options.share / (1 - options.share)
    else:
        # A contour through centres of pixels is half a pixel too small all around.
        perimeter = cv2.arcLength(contour, True)
        grow = _undo_shrink(cv2.contourArea(contour) + perimeter / 2 + 1, perimeter + 4, options.share)
    # 2. All that is near enough; the pixel at the kernel's edge covers half a pixel more, and so does the last one.
    margin = math.ceil(grow) + 2
    around = cv2.copyMakeBorder(mask, margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=0)
    near = (cv2.distanceTransform(1 - around, cv2.DIST_L2, 5) <= grow + 1).astype(np.uint8)
    outlines, _ = cv2.findContours(near, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    outline = max(outlines, key=cv2.contourArea)
    # 3. Fewer corners.
    simple = cv2.approxPolyDP(outline, max(0.5, _SIMPLER * grow), True)
    if len(simple) < 3:
        simple = cv2.boxPoints(cv2.minAreaRect(outline))[:, None]
    corner = np.array([x - 1 - margin, y - 1 - margin], np.float32)
    return np.asarray(simple[:, 0], np.float32) + corner


def _clockwise(points: Floats) -> Floats:
    """Return corners in clockwise order on the screen, from the upper left one on."""
    x, y = points.T
    if np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)) < 0:
        points = points[::-1]
    return np.ascontiguousarray(np.roll(points, -int((points[:, 0] + points[:, 1]).argmin()), axis=0))
