"""CLEval's detection score: how many of the characters of a set were found, and in how many pieces.

A detector for reading need not draw the annotator's box; it must cover each character once. So a text of n characters
is n points evenly along its middle line, and a found region stands for the points inside it (Baek et al. 2020,
"CLEval: Character-Level Evaluation for Text Detection and Recognition Tasks"):

    1. A text and a region may belong together where the region holds one of its points; the share of the region's area
       that lies in the text must reach 0.3, alone, or for a region over several texts all of them together.
    2. One text in several regions costs recall a character for each further piece, one region over several texts costs
       precision as much. A character that is found twice counts once, and in precision's denominator twice.
    3. A false region counts as round(0.5 + height / width) characters, at most 10. One would expect width / height; it
       is kept as it is in the reference implementation, so that figures can be compared.

A region is left out where a text to be ignored, minus the texts that are not, holds 0.3 of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from inkmill.data.types import Polygons
from inkmill.tasks.detection.overlaps import Geometries, Overlaps, Points, areas_without, points_inside

AREA_PRECISION = 0.3
_VERTICAL = 0.5  # width over height below which a text runs downwards
_MOST = 10  # characters of a text that is not known, and of a false region
_TINY = 1e-5


@dataclass
class ClevalCounts:
    """Counts that add up over pictures.

    Attributes:
        characters: of the texts to be found.
        found: of them, each once.
        boxed: characters in matched regions, each as often as it was found, and those that false regions stand for.
        split_cost, merge_cost: further pieces of split texts, further texts of merged regions.
        splits, merges, overlapped: split texts, merged regions, and characters that were found again.
    """

    characters: int = 0
    found: int = 0
    boxed: int = 0
    split_cost: int = 0
    merge_cost: int = 0
    splits: int = 0
    merges: int = 0
    overlapped: int = 0

    def __add__(self, other: ClevalCounts) -> ClevalCounts:
        return ClevalCounts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def recall(self) -> float:
        """Characters found, less a character for each further piece, over all characters."""
        return max(0, self.found - self.split_cost) / max(self.characters, 1)

    @property
    def precision(self) -> float:
        """Characters found, less a character for each further text of a region, over all that was boxed."""
        return max(0, self.found - self.merge_cost) / max(self.boxed, 1)

    @property
    def hmean(self) -> float:
        """The harmonic mean of both."""
        return 2 * self.precision * self.recall / max(self.precision + self.recall, 1e-12)


def count_characters(
    truth: Polygons, found: Sequence[Points], wanted: Geometries, polygons: Geometries, pairs: Overlaps
) -> ClevalCounts:
    """Return the counts of one picture.

    Args:
        truth: its regions. One whose text is not known stands for as many characters as it is long over high.
        found: the regions that were found.
        wanted, polygons: both as shapely polygons.
        pairs: how they overlap.
    """
    ignore = np.array(truth.ignore, np.bool_)
    texts = truth.texts or ("",) * len(truth.points)
    lengths = [len(text) or _unknown_length(points) for text, points in zip(texts, truth.points, strict=True)]
    # 1. Which region holds which point, (points, regions), and how much of each region lies in each text.
    centres = [character_centres(points, count) for points, count in zip(truth.points, lengths, strict=True)]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    inside = points_inside(np.concatenate([np.empty((0, 2)), *centres]), polygons)
    shares = _shares_of_found(pairs, ignore, wanted, polygons)
    held = np.zeros(shares.shape, np.int64)
    np.add.at(held, owner, inside)
    # 2. Regions that are left out, and who belongs together.
    counts = ~_left_out(shares[ignore], held[ignore])
    matched = _matches(shares, held, ~ignore, counts)
    # 3. Each character once; what is found again is counted.
    hits = inside & matched[owner]
    covered, pieces, texts_in = hits.any(axis=1), matched.sum(axis=1), matched.sum(axis=0)
    false = np.flatnonzero(counts & (texts_in == 0)).tolist()
    return ClevalCounts(
        characters=int(np.array(lengths, np.int64)[~ignore].sum()),
        found=int(covered.sum()),
        boxed=int(hits.sum()) + sum(_false_characters(found[number]) for number in false),
        split_cost=int(np.maximum(pieces - 1, 0).sum()),
        merge_cost=int(np.maximum(texts_in - 1, 0).sum()),
        splits=int((pieces > 1).sum()),
        merges=int((texts_in > 1).sum()),
        overlapped=int(hits.sum() - covered.sum()),
    )


def character_centres(points: Points, count: int) -> NDArray[np.float64]:
    """Return where the characters of a text are taken to be: float64 (count, 2), evenly along its middle line.

    Args:
        points: (N, 2), from the text's first corner along its upper and back along its lower edge. Of four corners that
            are more than twice as high as wide, the text runs downwards.
        count: characters.
    """
    corners = np.asarray(points, np.float64)
    if len(corners) == 4 and aspect(corners) < _VERTICAL:
        corners = np.roll(corners, 1, axis=0)
    half = len(corners) // 2
    # An odd number of corners has one more below: the last of them is taken twice above.
    upper, lower = corners[:half], corners[half:][::-1]
    if len(lower) > half:
        upper = np.concatenate([upper, upper[-1:]])
    middle = (upper + lower) / 2
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(middle, axis=0), axis=1))])
    places = (np.arange(count) + 0.5) / count * along[-1]
    return np.stack([np.interp(places, along, middle[:, axis]) for axis in (0, 1)], axis=1)


def aspect(points: Points) -> float:
    """Return width over height of a region whose corners begin at the text's upper left and go round."""
    corners = np.asarray(points, np.float64)
    half = len(corners) // 2
    upper, lower = corners[:half], corners[half:]
    width = sum(float(np.linalg.norm(np.diff(edge, axis=0), axis=1).sum()) for edge in (upper, lower)) / 2
    height = sum(float(np.linalg.norm(a - b)) for a, b in ((upper[0], lower[-1]), (upper[-1], lower[0]))) / 2
    return (width + _TINY) / (height + _TINY)


def _unknown_length(points: Points) -> int:
    ratio = aspect(points)
    return min(round(0.5 + max(ratio, 1 / ratio)), _MOST)


def _false_characters(points: Points) -> int:
    return min(round(0.5 + 1 / (_TINY + aspect(points))), _MOST)


def _shares_of_found(
    pairs: Overlaps, ignore: NDArray[np.bool_], wanted: Geometries, polygons: Geometries
) -> NDArray[np.float64]:
    """Return (truths, found), the share of each found region in each truth; texts to find are cut out of the others."""
    shares = np.zeros((len(wanted), len(polygons)))
    shares[pairs.truth, pairs.found] = pairs.share_of_found
    some = ignore[pairs.truth]
    if some.any() and not ignore.all():
        rows, columns = pairs.truth[some], pairs.found[some]
        areas = areas_without(wanted[rows], wanted[~ignore], polygons[columns])
        shares[rows, columns] = areas / pairs.found_areas[columns]
    return shares


def _left_out(shares: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool (found,): one text to be ignored holds enough of it, or those that it has points of do together."""
    together = np.where(held > 0, shares, 0).sum(axis=0)
    found: NDArray[np.bool_] = (shares >= AREA_PRECISION).any(axis=0) | (together >= AREA_PRECISION)
    return found


def _matches(
    shares: NDArray[np.float64], held: NDArray[np.int64], cared: NDArray[np.bool_], counts: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which texts and regions belong together: bool (truths, found)."""
    both = cared[:, None] & counts
    linked = (shares >= AREA_PRECISION) & (held > 0)
    # 1. One with one: neither is linked to any other, not even to those that do not count.
    alone = linked & (linked.sum(axis=1, keepdims=True) == 1) & (linked.sum(axis=0) == 1) & both
    # 2. One text in several regions.
    pieces = linked & both
    split = pieces & (pieces.sum(axis=1, keepdims=True) >= 2)
    # 3. One region over several texts, which fill it together.
    parts = (held > 0) & both
    filled = np.where(parts, shares, 0).sum(axis=0) >= AREA_PRECISION
    merged = parts & filled & (parts.sum(axis=0) >= 2)
    matched: NDArray[np.bool_] = alone | split | merged
    return matched
