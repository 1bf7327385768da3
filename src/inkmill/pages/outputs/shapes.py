"""What several output formats need of a page: boxes in whole pixels, blocks of rows, baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import numpy as np

from inkmill.pages.types import Line, Page, Points

BASELINE = 0.22
"""Where the baseline lies, in heights of a line above its lower edge: descenders are below it."""


class Box(NamedTuple):
    """A rectangle in whole pixels, all of a polygon inside, cut off at the page's edges."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """Columns."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """Rows."""
        return self.bottom - self.top


def box_of(points: Points, page: Page) -> Box:
    """Return the box around a polygon, (N, 2) or several, (M, N, 2); at least one pixel."""
    flat = points.reshape(-1, 2)
    low, high = np.floor(flat.min(axis=0) + 1e-3), np.ceil(flat.max(axis=0) - 1e-3)
    left = int(np.clip(low[0], 0, page.width - 1))
    top = int(np.clip(low[1], 0, page.height - 1))
    right = int(np.clip(high[0], left + 1, page.width))
    bottom = int(np.clip(high[1], top + 1, page.height))
    return Box(left, top, right, bottom)


def boxes_of(parts: Sequence[Line], page: Page) -> Box:
    """Return the box around several lines."""
    boxes = [box_of(line.polygon, page) for line in parts]
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return Box(min(lefts), min(tops), max(rights), max(bottoms))


def blocks_of(page: Page) -> list[list[Line]]:
    """Return the lines of each block, in reading order."""
    return [list(lines) for _, lines in groupby(page.lines, key=lambda line: line.block)]


def baseline_of(polygon: Points) -> Points:
    """Return the two ends of a line's baseline, float32 (2, 2), where the text begins first.

    Args:
        polygon: (N, 2), from the top left of the text on; of its first, second, last but one and last corner.
    """
    top, bottom = polygon[[0, 1]], polygon[[-1, -2]]
    return (bottom + (top - bottom) * BASELINE).astype(np.float32)


def angle_of(polygon: Points) -> float:
    """Return the direction of reading in degrees counter-clockwise, as hOCR counts, -180..180."""
    x, y = (polygon[1] - polygon[0]).tolist()
    return -math.degrees(math.atan2(y, x)) + 0.0


def xml_bytes(root: Xml.Element, doctype: str = "") -> bytes:
    """Return an XML file, UTF-8."""
    content: bytes = Xml.tostring(root, encoding="utf-8")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{doctype}'.encode() + content + b"\n"


def legal(text: str) -> str:
    """Return a text without the characters that XML 1.0 forbids, and UTF-8 halves; each becomes U+FFFD."""
    return "".join(one if _is_legal(ord(one)) else "\ufffd" for one in text)


def _is_legal(code: int) -> bool:
    return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
