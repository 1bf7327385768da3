"""From the columns in which a reader wrote its characters to words and characters with polygons on the page.

CTC writes a character in one or a few columns near its middle. Its box reaches half way to its neighbours; the first
and the last character of a line reach as far outwards as inwards, but not beyond the line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inkmill.pages.geometry import Matrix, apply
from inkmill.pages.models import LineText
from inkmill.pages.types import Word

Edges = NDArray[np.float64]


def words_of(text: LineText, width: float, height: float, to_page: Matrix) -> list[Word]:
    """Return the words of a line.

    Args:
        text: in columns of the line.
        width: of the line, in columns.
        height: of the line, in rows.
        to_page: from the line's columns and rows to the page's pixels.
    """
    if not text.text.strip():
        return []
    left, right = character_edges(text, width)
    boxes = apply(to_page, _rectangles(left, right, height))
    found = []
    start = 0
    for word in text.text.split(" "):
        end = start + len(word)
        if word.strip():
            polygon = apply(to_page, _rectangles(left[start : start + 1], right[end - 1 : end], height))[0]
            confidence = float(text.probabilities[start:end].mean())
            found.append(Word(word, confidence, polygon, boxes[start:end]))
        start = end + 1
    return found


def character_edges(text: LineText, width: float) -> tuple[Edges, Edges]:
    """Return where each character begins and ends, (N,) each, in columns of the line."""
    starts, ends = text.starts.astype(np.float64), text.ends.astype(np.float64)
    middles = (ends[:-1] + starts[1:]) / 2
    centres = (starts + ends) / 2
    if not len(middles):
        return np.zeros(1), np.array([float(width)])
    first = max(2 * centres[0] - middles[0], 0.0)
    last = min(2 * centres[-1] - middles[-1], float(width))
    edges = np.concatenate([[min(first, starts[0])], middles, [max(last, min(ends[-1], width))]])
    return np.clip(edges[:-1], 0, width), np.clip(edges[1:], 0, width)


def _rectangles(left: Edges, right: Edges, height: float) -> NDArray[np.float64]:
    top, bottom = np.zeros_like(left), np.full_like(left, height)
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
