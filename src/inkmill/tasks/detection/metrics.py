"""Scores of a text detector: the competition's h-mean, a stricter one, and CLEval.

The h-mean is that of ICDAR 2015's script 1.0 (incidental scene text, task 1):

    1. A found region of which more than half lies in one region to be ignored counts neither as right nor as wrong.
    2. Of the others, truth by truth and in the order in which they were found, the first that is still free and whose
       intersection over union with the truth is above 0.5 finds it.
    3. Recall, precision and their harmonic mean are over all regions of the set together, not means over pictures.

What other programs get wrong here is not done: self-crossing regions count, a picture without text counts (each region
found there is a false one), no threshold is chosen on the set that is scored, and nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.types import Polygons
from inkmill.errors import DataError
from inkmill.tasks.base import Scores
from inkmill.tasks.detection.cleval import ClevalCounts, count_characters
from inkmill.tasks.detection.overlaps import Overlaps, Points, as_polygons, overlaps, sides_of

FIGURES = {
    "hmean": "h-mean",
    "precision": "precision",
    "recall": "recall",
    "hmean_iou70": "h-mean at IoU 0.7",
    "cleval": "CLEval",
}
"""What is shown after each epoch, the primary figure first."""

HEIGHTS = (0, 8, 12, 16, 24, 32, 48, 64, np.inf)
"""Edges of the short side, in pixels, by which recall is told."""
ASPECTS = (0, 1.5, 3, 5, 8, 12, 20, np.inf)
"""Edges of long side over short side."""

_IGNORED_SHARE = 0.5
_THRESHOLDS = np.arange(30, 95, 5) / 100


@dataclass(frozen=True, slots=True)
class RegionMatch:
    """What became of the regions of one picture, at one intersection over union.

    Attributes:
        truth, found: int64 (M,), the pairs; `iou` float64 (M,) of each.
        missed: int64, truths that nothing found.
        false: int64, found regions where nothing is.
        ignored: int64, found regions that count neither way.
    """

    truth: NDArray[np.int64]
    found: NDArray[np.int64]
    iou: NDArray[np.float64]
    missed: NDArray[np.int64]
    false: NDArray[np.int64]
    ignored: NDArray[np.int64]


@dataclass(frozen=True)
class DetectionScores(Scores):
    """The scores of one set; shares in 0..1.

    Attributes:
        samples: pictures.
        hmean, precision, recall: at an intersection over union above 0.5.
        hmean_iou70, precision_iou70, recall_iou70: above 0.7.
        mean_iou: of the regions matched at 0.5; None without any.
        cleval, cleval_precision, cleval_recall: CLEval's detection scores.
        splits, merges, overlapped: CLEval: texts found in pieces, regions over several texts, characters found twice.
        regions, found, matched: truths to be found, found regions that count, and pairs at 0.5.
        ignored_regions, ignored_found: what counts neither way.
        recall_by_height: by short side in pixels: (truths, share of them found).
        recall_by_aspect: by long side over short side: the same.
        threshold: regions of a lower score were left out; None: there was no such choice here.
    """

    samples: int
    hmean: float
    precision: float
    recall: float
    hmean_iou70: float
    precision_iou70: float
    recall_iou70: float
    mean_iou: float | None
    cleval: float
    cleval_precision: float
    cleval_recall: float
    splits: int
    merges: int
    overlapped: int
    regions: int
    found: int
    matched: int
    ignored_regions: int
    ignored_found: int
    recall_by_height: dict[str, tuple[int, float | None]]
    recall_by_aspect: dict[str, tuple[int, float | None]]
    threshold: float | None = None

    def headline(self) -> dict[str, float]:
        """Return the figures of `FIGURES`."""
        return {name: getattr(self, name) for name in FIGURES}

    def rank(self) -> tuple[float, ...]:
        """Return the h-means at 0.5 and at 0.7, and CLEval's."""
        return self.hmean, self.hmean_iou70, self.cleval

    def table(self) -> dict[str, float | None]:
        """Return the columns of the table that `evaluate` prints."""
        return {
            "h-mean": self.hmean,
            "precision": self.precision,
            "recall": self.recall,
            "h-mean at .7": self.hmean_iou70,
            "mean IoU": self.mean_iou,
            "CLEval": self.cleval,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for metrics.json."""
        values = asdict(self)
        for name in ("recall_by_height", "recall_by_aspect"):
            values[name] = {bin_: {"regions": n, "recall": share} for bin_, (n, share) in values[name].items()}
        return values


def score(
    truths: Sequence[Polygons],
    found: Sequence[Sequence[Points]],
    confidences: Sequence[NDArray[np.floating[Any]]] | None = None,
    threshold: float | None = None,
    whole_numbers: bool = False,
) -> DetectionScores:
    """Compare found regions with the truth.

    Args:
        truths: of each picture.
        found: of each picture its regions, (N, 2) each, N >= 3, in the same pixels as the truth.
        confidences: of each picture the scores of its regions, (n,), 0..1; needed for `threshold`.
        threshold: leave out regions of a lower score.
        whole_numbers: cut all corners to whole pixels first, as the competition's script does.

    Raises:
        DataError: nothing to score, or the two sides differ in number.
    """
    if not truths:
        raise DataError("there is nothing to score: the set has no samples")
    if len(truths) != len(found):
        raise DataError(f"{len(truths)} pictures cannot be compared with the regions of {len(found)}")
    if threshold is not None:
        found = _above(found, confidences, threshold)
    # 1. All polygons, and all overlaps, once.
    wanted = [as_polygons(one.points, whole_numbers) for one in truths]
    polygons = [as_polygons(one, whole_numbers) for one in found]
    pairs = overlaps(wanted, polygons)
    ignore = [np.array(one.ignore, np.bool_) for one in truths]
    # 2. Who finds whom, at both limits.
    at50, at70 = ([_matched(*row, limit) for row in zip(pairs, ignore, strict=True)] for limit in (0.5, 0.7))
    precision, recall, hmean = _shares(at50)
    precision70, recall70, hmean70 = _shares(at70)
    # 3. CLEval, by characters.
    characters = ClevalCounts()
    for picture, truth in enumerate(truths):
        characters += count_characters(truth, found[picture], wanted[picture], polygons[picture], pairs[picture])
    ious = np.concatenate([one.iou for one in at50])
    heights, aspects = _recall_by_shape(truths, at50)
    return DetectionScores(
        samples=len(truths),
        hmean=hmean,
        precision=precision,
        recall=recall,
        hmean_iou70=hmean70,
        precision_iou70=precision70,
        recall_iou70=recall70,
        mean_iou=float(ious.mean()) if len(ious) else None,
        cleval=characters.hmean,
        cleval_precision=characters.precision,
        cleval_recall=characters.recall,
        splits=characters.splits,
        merges=characters.merges,
        overlapped=characters.overlapped,
        regions=sum(len(one.truth) + len(one.missed) for one in at50),
        found=sum(len(one.found) + len(one.false) for one in at50),
        matched=len(ious),
        ignored_regions=sum(int(one.sum()) for one in ignore),
        ignored_found=sum(len(one.ignored) for one in at50),
        recall_by_height=heights,
        recall_by_aspect=aspects,
        threshold=threshold,
    )


def match_regions(truth: Polygons, found: Sequence[Points], limit: float = 0.5) -> RegionMatch:
    """Return what became of the regions of one picture.

    Args:
        truth: what is there.
        found: (N, 2) each.
        limit: the intersection over union that a match must exceed.
    """
    (pairs,) = overlaps([as_polygons(truth.points)], [as_polygons(found)])
    return _matched(pairs, np.array(truth.ignore, np.bool_), limit)


def best_threshold(
    truths: Sequence[Polygons],
    found: Sequence[Sequence[Points]],
    confidences: Sequence[NDArray[np.floating[Any]]],
    candidates: Sequence[float] = tuple(_THRESHOLDS.tolist()),
) -> float:
    """Return the score from which on a region should count, by the h-mean on this set; of equals the lowest.

    Call it with a part of the training data that was held out: chosen on a test set it flatters the model.
    """
    wanted = [as_polygons(one.points) for one in truths]
    pairs = overlaps(wanted, [as_polygons(one) for one in found])
    ignore = [np.array(one.ignore, np.bool_) for one in truths]
    found_by: list[float] = []
    for candidate in candidates:
        rows = zip(pairs, ignore, confidences, strict=True)
        found_by.append(_shares([_matched(pair, skip, 0.5, said >= candidate) for pair, skip, said in rows])[2])
    return float(candidates[int(np.argmax(found_by))])


def _above(
    found: Sequence[Sequence[Points]], confidences: Sequence[NDArray[np.floating[Any]]] | None, threshold: float
) -> list[list[Points]]:
    if confidences is None:
        raise ValueError("a threshold needs the regions' scores")
    return [
        [region for region, score in zip(regions, scores, strict=True) if score >= threshold]
        for regions, scores in zip(found, confidences, strict=True)
    ]


def _matched(
    pairs: Overlaps, ignore: NDArray[np.bool_], limit: float, counts: NDArray[np.bool_] | None = None
) -> RegionMatch:
    """Match the regions of one picture; `counts`, bool (F,), says which found regions there are at all."""
    there = np.ones(len(pairs.found_areas), np.bool_) if counts is None else counts
    # 1. Found regions that lie in one that is to be ignored. An ignored truth takes no part from here on.
    skipped = np.zeros(len(there), np.bool_)
    skipped[pairs.found[ignore[pairs.truth] & (pairs.share_of_found > _IGNORED_SHARE)]] = True
    # 2. Truth by truth, the first free one that overlaps enough.
    iou = pairs.iou
    able = (iou > limit) & ~ignore[pairs.truth] & ~skipped[pairs.found] & there[pairs.found]
    taken: dict[int, int] = {}
    chosen = []
    hit = set[int]()
    for place in np.flatnonzero(able).tolist():
        truth, found = int(pairs.truth[place]), int(pairs.found[place])
        if truth not in hit and found not in taken:
            hit.add(truth)
            taken[found] = truth
            chosen.append(place)
    # 3. What is left over on both sides.
    missed, false = ~ignore, there & ~skipped
    missed[pairs.truth[chosen]] = False
    false[pairs.found[chosen]] = False
    return RegionMatch(
        pairs.truth[chosen],
        pairs.found[chosen],
        iou[chosen],
        np.flatnonzero(missed),
        np.flatnonzero(false),
        np.flatnonzero(skipped & there),
    )


def _shares(matches: Sequence[RegionMatch]) -> tuple[float, float, float]:
    """Return precision, recall and their harmonic mean over all pictures together."""
    right = sum(len(one.truth) for one in matches)
    wanted = right + sum(len(one.missed) for one in matches)
    found = right + sum(len(one.false) for one in matches)
    precision, recall = right / max(found, 1), right / max(wanted, 1)
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-12)


_Bins = dict[str, tuple[int, float | None]]


def _recall_by_shape(truths: Sequence[Polygons], matches: Sequence[RegionMatch]) -> tuple[_Bins, _Bins]:
    """Return recall by short side and by aspect."""
    shapes, hits = [], []
    for truth, match in zip(truths, matches, strict=True):
        cared = np.flatnonzero(~np.array(truth.ignore, np.bool_))
        shapes.append(sides_of([truth.points[number] for number in cared.tolist()]))
        hits.append(np.isin(cared, match.truth))
    sides, hit = np.concatenate(shapes), np.concatenate(hits)
    return _binned(sides[:, 0], hit, HEIGHTS), _binned(sides[:, 1] / np.maximum(sides[:, 0], 1e-6), hit, ASPECTS)


def _binned(values: NDArray[np.floating[Any]], hit: NDArray[np.bool_], edges: Sequence[float]) -> _Bins:
    bins: _Bins = {}
    for low, high in pairwise(edges):
        inside = (values >= low) & (values < high)
        name = f"{low:g}-{high:g}" if high < np.inf else f"≥{low:g}"
        bins[name] = int(inside.sum()), float(hit[inside].mean()) if inside.any() else None
    return bins
