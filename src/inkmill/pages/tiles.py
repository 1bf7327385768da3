"""Detection on pages of any shape: a long strip is cut into tiles that overlap, never squeezed until its text is gone.

A region that lies in the overlap of two tiles is found twice, and may be cut at a tile's edge in one of them. Of two
that cover each other the one whose tile shows more of its surroundings stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.pages.geometry import Points, bounds, overlap, rectangle
from inkmill.pages.models import LineDetector

Image = NDArray[np.uint8]

LONGEST = 3.0
"""A picture this many times as long as wide goes to the detector in one piece."""
TILE = 2.0
"""Length of a tile, in widths of the strip; a strip of fewer than TILE_PIXELS across gets longer ones."""
TILE_PIXELS = 1024
SHARED = 160
"""Pixels that two tiles share, at least: two lines of large text."""
SAME = 0.5
"""Of the smaller of two regions, how much the other must cover to be the same text."""


@dataclass(frozen=True, slots=True, eq=False)
class Quad:
    """A rectangle of text on a page.

    Attributes:
        corners: float32 (4, 2), clockwise.
        score: of the detector, 0..1.
    """

    corners: Points
    score: float


class _Span(NamedTuple):
    start: int
    end: int


def detect(detector: LineDetector, pixels: Image) -> list[Quad]:
    """Return the text of a page, in its pixels.

    Args:
        detector: any.
        pixels: uint8 (H, W, 3).
    """
    height, width = pixels.shape[:2]
    axis = 0 if height >= width else 1
    spans = _spans(max(height, width), min(height, width))
    tiles = [pixels[span.start : span.end] if axis == 0 else pixels[:, span.start : span.end] for span in spans]
    found: list[Quad] = []
    margins: list[float] = []
    for span, tile in zip(spans, tiles, strict=True):
        shift = np.array([0, span.start] if axis == 0 else [span.start, 0], np.float32)
        for region in detector.detect([np.ascontiguousarray(tile)])[0]:
            points = np.asarray(region.points, np.float32)
            if len(points) < 3:
                continue
            corners = rectangle(points + shift)
            found.append(Quad(corners, float(region.score)))
            margins.append(_margin(corners, axis, span, spans))
    return found if len(spans) == 1 else _without_repeats(found, margins)


def _spans(length: int, across: int) -> Sequence[_Span]:
    if length <= LONGEST * across or length <= TILE_PIXELS:
        return [_Span(0, length)]
    tile = max(int(TILE * across), TILE_PIXELS)
    shared = min(max(SHARED, across // 8), tile // 2)
    count = math.ceil((length - shared) / (tile - shared))
    starts = np.linspace(0, length - tile, max(count, 2)).round().astype(int).tolist()
    return [_Span(start, start + tile) for start in starts]


def _margin(corners: Points, axis: int, span: _Span, spans: Sequence[_Span]) -> float:
    """Return how far a region is from the nearest edge of its tile that is not the page's own."""
    along = corners[:, 1 - axis]
    before = float(along.min()) - span.start if span.start > 0 else math.inf
    after = span.end - float(along.max()) if span.end < spans[-1].end else math.inf
    return min(before, after)


def _without_repeats(found: Sequence[Quad], margins: Sequence[float]) -> list[Quad]:
    if not found:
        return []
    boxes = bounds(np.stack([quad.corners for quad in found]))
    covers = overlap(boxes, boxes) > SAME
    kept: list[int] = []
    for index in np.argsort(-np.asarray(margins), kind="stable").tolist():
        if not covers[index, kept].any():
            kept.append(index)
    return [found[index] for index in sorted(kept)]
