"""Reading order: which lines stand side by side, which form a column, and which come first.

1. the lines' common angle is taken away (deskew)
2. the page falls into bands between which nothing is written; neighbouring bands that share a white gutter with
   text on both sides belong together, so a header over two columns is not cut by their gutter
3. a gutter between two columns of text divides them (XY-cut, Nagy & Seth 1984); one between the columns of a table
   or before a receipt's prices does not, for there one reads across
4. in each block, lines that overlap by more than half of the smaller height are one row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.pages.geometry import Points, edge_angle, sides

Boxes = NDArray[np.float64]
"""(N, 4): left, top, right, bottom of lines, after deskewing."""
Indices = NDArray[np.int64]

GUTTER = 0.8
"""Narrowest white gutter between columns, in heights of a line."""
COLUMN_WIDTH, COLUMN_FILL, COLUMN_ROWS = 6.0, 0.5, 3
"""What is a column of text: its median line is so many heights wide and fills so much of it, and so many rows."""
BLOCK_GAP = 1.1
"""White between two rows that begins a new block, in heights of a line."""
SAME_ROW = 0.5


class Place(NamedTuple):
    """Where a line comes in the reading order.

    Attributes:
        line: which line.
        block: from 0.
        row: in the block, from 0.
    """

    line: int
    block: int
    row: int


def skew_of(quads: Sequence[Points]) -> float:
    """Return the lines' common angle in degrees: the median, each line counted by its length; 0 without lines."""
    long = [(edge_angle(quad), sides(quad)[0]) for quad in quads if sides(quad)[0] >= 2 * sides(quad)[1]]
    long = [(angle, length) for angle, length in long if abs(angle) <= 45]
    if not long:
        return 0.0
    angles, lengths = (np.array(values) for values in zip(*sorted(long), strict=True))
    middle = int(np.searchsorted(lengths.cumsum(), lengths.sum() / 2))
    return float(angles[min(middle, len(angles) - 1)])


def reading_order(quads: Sequence[Points]) -> list[Place]:
    """Return the lines in reading order.

    Args:
        quads: float32 (4, 2) each, upright but for a small common angle.
    """
    if not quads:
        return []
    # 1. Deskew: centres turn, and lines lie flat.
    angle = np.radians(skew_of(quads))
    back = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    centres = np.stack([quad.mean(axis=0) for quad in quads]) @ back.T
    halves = np.array([_flat_size(quad) for quad in quads]) / 2
    boxes = np.concatenate([centres - halves, centres + halves], axis=1)
    height = float(np.median(boxes[:, 3] - boxes[:, 1]))
    # 2. and 3. Blocks, in order; 4. their rows.
    found: list[Place] = []
    block = 0
    for indices in _blocks(boxes, np.arange(len(boxes)), height):
        rows = _rows(boxes, indices)
        bottom = None
        row_number = 0
        for row in rows:
            top = float(boxes[row, 1].min())
            if bottom is not None and top - bottom > BLOCK_GAP * height:
                block, row_number = block + 1, 0
            found += [Place(int(line), block, row_number) for line in row]
            bottom = max(float(boxes[row, 3].max()), bottom or -np.inf)
            row_number += 1
        block += 1
    return found


def _flat_size(quad: Points) -> tuple[float, float]:
    """Return width and height of a line that lies flat; one that stands upright stays so."""
    width, height = sides(quad)
    return (width, height) if abs(edge_angle(quad)) <= 45 or abs(edge_angle(quad)) >= 135 else (height, width)


def _blocks(boxes: Boxes, indices: Indices, height: float) -> list[Indices]:
    """Return groups of lines in reading order, by XY-cut."""
    found: list[Indices] = []
    for group in _groups(boxes, indices, height):
        gutter = _column_gutter(boxes, group, height)
        if gutter is None:
            found.append(group)
            continue
        left = boxes[group, 2] <= gutter
        found += _blocks(boxes, group[left], height)
        found += _blocks(boxes, group[~left], height)
    return found


def _groups(boxes: Boxes, indices: Indices, height: float) -> list[Indices]:
    """Return neighbouring bands that share a gutter, or that have none, from the top."""
    groups: list[Indices] = []
    for band in _bands(boxes, indices):
        if groups:
            joined = np.concatenate([groups[-1], band])
            had, has = (bool(_gutters(boxes, one, height)) for one in (groups[-1], band))
            if _gutters(boxes, joined, height) or not (had or has):
                groups[-1] = joined
                continue
        groups.append(band)
    return groups


def _bands(boxes: Boxes, indices: Indices) -> list[Indices]:
    """Return the lines between white stripes across the page, from the top; lines overlap a little by their growth."""
    order = indices[np.argsort(boxes[indices, 1], kind="stable")]
    tops, bottoms = boxes[order, 1], boxes[order, 3]
    slack = 0.25 * (bottoms - tops)
    lowest = np.maximum.accumulate(bottoms - slack)
    cuts = np.flatnonzero(tops[1:] + slack[1:] >= lowest[:-1]) + 1
    return np.split(order, cuts)


def _gutters(boxes: Boxes, indices: Indices, height: float) -> list[tuple[float, float]]:
    """Return the white stripes from top to bottom that have text on both sides."""
    order = indices[np.argsort(boxes[indices, 0], kind="stable")]
    reach = np.maximum.accumulate(boxes[order, 2])
    gaps = boxes[order[1:], 0] - reach[:-1]
    wide = np.flatnonzero(gaps >= GUTTER * height)
    return [(float(reach[i]), float(boxes[order[i + 1], 0])) for i in wide]


def _column_gutter(boxes: Boxes, indices: Indices, height: float) -> float | None:
    """Return where the widest gutter between two columns of text begins; None where one reads across."""
    gutters = _gutters(boxes, indices, height)
    for start, _ in sorted(gutters, key=lambda gutter: gutter[0] - gutter[1]):
        left = boxes[indices, 2] <= start
        if _is_text(boxes[indices[left]], height) and _is_text(boxes[indices[~left]], height):
            return start
    return None


def _is_text(boxes: Boxes, height: float) -> bool:
    """Return whether lines look like a column of running text, or several columns beside each other."""
    extent = float(boxes[:, 2].max() - boxes[:, 0].min())
    if float(np.median(boxes[:, 2] - boxes[:, 0])) < COLUMN_WIDTH * height:
        return False
    rows = _rows(boxes, np.arange(len(boxes)))
    if len(rows) < COLUMN_ROWS:
        return False
    filled = [float((boxes[row, 2] - boxes[row, 0]).sum()) / extent for row in rows]
    return float(np.median(filled)) >= COLUMN_FILL


def _rows(boxes: Boxes, indices: Indices) -> list[Indices]:
    """Return the rows of a block from the top, each from left to right.

    A line joins the row whose nearest member to its side it overlaps in height by more than half of the smaller one;
    so a row may drift where a page is bent, and does not swallow the next.
    """
    rows: list[list[int]] = []
    for index in indices[np.argsort(boxes[indices, 1] + boxes[indices, 3], kind="stable")].tolist():
        best, row_of = SAME_ROW, None
        for row in rows[-4:]:
            shared = _shared_height(boxes, row, index)
            if shared > best:
                best, row_of = shared, row
        if row_of is None:
            rows.append([index])
        else:
            row_of.append(index)
    return [np.array(sorted(row, key=lambda index: boxes[index, 0]), np.int64) for row in rows]


def _shared_height(boxes: Boxes, row: list[int], index: int) -> float:
    """Return the overlap in height with the nearest member, as a share of the smaller one; 0 where they stand over
    each other."""
    box, others = boxes[index], boxes[row]
    gaps = np.maximum(others[:, 0] - box[2], box[0] - others[:, 2])
    narrower = np.minimum(others[:, 2] - others[:, 0], box[2] - box[0])
    if (gaps < -0.5 * narrower).any():
        return 0.0
    near = others[int(gaps.argmin())]
    shared = min(box[3], near[3]) - max(box[1], near[1])
    return float(shared / max(min(box[3] - box[1], near[3] - near[1]), 1e-6))
