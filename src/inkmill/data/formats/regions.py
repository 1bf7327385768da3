"""Text regions as one line of JSON: PaddleOCR's way to write them, and how `FolderSource` holds them in memory.

    [{"transcription": "New York", "points": [[10, 8], [90, 8], [90, 30], [10, 30]]}, ...]

`###` and `*` mark a region to ignore, which is neither right nor wrong to find; it has no text. Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.formats.base import unwritable
from inkmill.data.types import Polygons, Target

IGNORED = ("###", "*")
"""Texts that mark a region to ignore; the first is the one that is written."""


def regions_of(rows: Iterator[tuple[NDArray[np.float32], str]]) -> Polygons:
    """Return the polygons of some corners, each (N, 2), and what is written there."""
    pairs = list(rows)
    # The mark takes the place of a text, so an ignored region has none.
    ignore = tuple(text in IGNORED for _, text in pairs)
    texts = tuple("" if skip else text for skip, (_, text) in zip(ignore, pairs, strict=True))
    return Polygons(tuple(corners for corners, _ in pairs), ignore, texts)


def rows_of(polygons: Polygons) -> Iterator[tuple[list[list[float]], str]]:
    """Yield each region's corners, in as few digits as float32 needs, and its text as it is written."""
    texts = polygons.texts or ("",) * len(polygons.points)
    for corners, ignore, text in zip(polygons.points, polygons.ignore, texts, strict=True):
        yield [[_short(number) for number in corner] for corner in corners], IGNORED[0] if ignore else text


Corners = NDArray[np.float32]


def corners_of(numbers: Any) -> Corners:
    """Return corners (N, 2) from a list of [x, y], or from one of x, y, x, y ...

    Raises:
        ValueError: it is neither, has less than three corners, or one that is no number.
    """
    try:
        corners = np.array(numbers, np.float32)
    except (TypeError, ValueError, OverflowError):
        corners = np.empty(0, np.float32)
    if corners.ndim == 1 and len(corners) % 2 == 0:
        corners = corners.reshape(-1, 2)
    if not _is_region(corners):
        raise ValueError(f"expected at least three corners, each x and y, not {str(numbers)[:60]}")
    return corners


def box_corners(x: Any, y: Any, width: Any, height: Any, degrees: Any = 0.0, about_centre: bool = False) -> Corners:
    """Return the corners of a box from its upper left one, turned clockwise about that corner or about its centre.

    Raises:
        ValueError: a number is none.
    """
    try:
        x, y, width, height, degrees = (float(number) for number in (x, y, width, height, degrees))
        found = bool(np.isfinite([x, y, width, height, degrees]).all())
    except (TypeError, OverflowError):
        found = False
    if not found:
        raise ValueError(f"expected the numbers of a box, not {(x, y, width, height, degrees)!r:.80}")
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    pivot = np.array([width, height]) / 2 if about_centre else np.zeros(2)
    cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    turned = (corners - pivot) @ np.array([[cosine, sine], [-sine, cosine]]) + pivot + (x, y)
    return corners_of(turned.tolist())


def polygons_of(rows: Iterable[tuple[Corners, str, bool]]) -> Polygons:
    """Return the polygons of corners, what is written there, and whether to ignore it: such have no text."""
    points, texts, ignore = [], [], []
    for corners, text, skip in rows:
        skip = skip or text in IGNORED
        points.append(corners)
        texts.append("" if skip else text)
        ignore.append(skip)
    return Polygons(tuple(points), tuple(ignore), tuple(texts))


def parse_regions(line: str) -> Polygons:
    """Return the polygons that a line of JSON holds.

    Raises:
        ValueError: it holds something else; says what was expected.
    """
    try:
        rows = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON list of regions ({error})") from None
    if not isinstance(rows, list):
        raise ValueError("expected a JSON list of regions")
    return regions_of(_region(row, number) for number, row in enumerate(rows, 1))


def dump_regions(polygons: Polygons) -> str:
    """Return the line of JSON that `parse_regions` reads back as the same polygons."""
    rows = [{"transcription": text, "points": corners} for corners, text in rows_of(polygons)]
    return json.dumps(rows, ensure_ascii=False)


def refuses_regions(target: Target, name: str) -> str | None:
    """Say why a target cannot be written as regions of the format `name`, or None."""
    if not isinstance(target, Polygons):
        return f"{name} holds text regions"
    count = len(target.points)
    if len(target.ignore) != count or len(target.texts) not in (0, count):
        return f"{count} regions have {len(target.ignore)} flags and {len(target.texts)} texts"
    if not all(_is_region(corners) for corners in target.points):
        return "a region has less than three points, or one that is no number"
    for text, ignore in zip(target.texts, target.ignore, strict=bool(target.texts)):
        if ignore and text:
            return f"the region {text!r} is to be ignored, which takes the place of its text"
        if text in IGNORED:
            return f"the text {text!r} would mark its region as one to ignore"
        if refusal := unwritable(text, "", "text"):
            return refusal
    return None


def _region(row: Any, number: int) -> tuple[NDArray[np.float32], str]:
    text = row.get("transcription") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise ValueError(f'region {number}: expected {{"transcription": TEXT, "points": [[x, y], ...]}}')
    # Ragged lists, strings and huge numbers make NumPy raise one of several errors, all of which mean "no region".
    try:
        corners = np.array(row.get("points"), np.float32)
    except (TypeError, ValueError, OverflowError):
        corners = np.empty(0, np.float32)
    if not _is_region(corners):
        raise ValueError(f"region {number}: expected at least three points, each [x, y]")
    return corners, text


def _is_region(corners: NDArray[np.float32]) -> bool:
    shaped = corners.ndim == 2 and corners.shape[1] == 2 and len(corners) >= 3
    return shaped and bool(np.isfinite(corners).all())


def _short(number: np.float32) -> float:
    # Through float32's own shortest text: 0.1 is written as 0.1, not as 0.10000000149011612.
    return int(number) if number == int(number) else float(str(np.float32(number)))
