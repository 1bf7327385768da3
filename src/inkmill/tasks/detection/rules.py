"""Which pictures a detector can learn from, which of their regions it would not, and what `check` shows of both.

A picture without regions is as good as any other: nothing may be found there. A region needs no text. What is left out
of learning is left out region by region, as *ignored*: such a place is neither text nor background to the loss. A set
most of which is ignored trains to nothing without an error anywhere, so every reason is counted and shown.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.check import Judged
from inkmill.data.pipeline.pages import PageResize
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Polygons, Target
from inkmill.report import Page
from inkmill.tasks.detection.decode import DecodeOptions
from inkmill.tasks.detection.targets import MapOptions

IgnoredFor = Literal["marked", "too small", "no area", "outside"]
"""Why a region is ignored in learning: its label says so; its short side is under the least one, in pixels of the
model's input; it has no area; less than half of it lies in the picture."""

SIDES = (0, 4, 8, 12, 16, 24, 32, 48, 64, 96, np.inf)
"""Edges of the histogram of short sides, in pixels of the model's input."""
ASPECTS = (0, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, np.inf)
"""Edges of the histogram of long side over short side."""

CEILING_PICTURES = 12
"""Of how many pictures perfect maps are made and decoded: a tenth of a second each."""

_VERSION = 2  # raise it when the same set would be judged otherwise
_NO_AREA = 1.0  # square pixels of the picture
_MOST_POINTS = 1000
_INSIDE = 0.5


class RegionRules:
    """What a picture must fulfil to teach a detector; see `inkmill.data.jobs.check.SampleRules`.

    Args:
        resize: how pictures are brought to the input.
        min_side: regions whose short side is smaller, in pixels of the input, are ignored in learning.
        maps, decoding: how targets are made and decoded, to tell what a perfect map reaches; None: that is not told.
    """

    reasons = ("no_regions_known", "bad_region")
    notes: tuple[str, ...] = ()

    def __init__(
        self, resize: Resize, min_side: float, maps: MapOptions | None = None, decoding: DecodeOptions | None = None
    ) -> None:
        self.resize, self.min_side, self.maps, self.decoding = resize, min_side, maps, decoding

    def digest(self) -> str:
        """Return 16 hex digits that stand for the verdicts of these rules."""
        facts = [_VERSION, self.resize.digest(), self.min_side, repr(self.maps), repr(self.decoding)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def judge(self) -> RegionJudge:
        """Return a judge for one set, whose counts start at 0."""
        return RegionJudge(self)

    def show(self, page: Page, facts: Mapping[str, Any]) -> None:
        """Add the regions of one set to the page of `check`."""
        total, learned = facts["regions"], facts["learned"]
        page.add_text(
            f"{total:,} regions in {facts['samples']:,} pictures. {facts['without_regions']:,} pictures have none, so "
            f"that nothing may be found there. {learned:,} regions would be learned, {total - learned:,} ignored: they "
            "are neither text nor background."
        )
        if total and learned < total / 2:
            page.add_text("More than half of the regions would be ignored: is that meant?")
        rows = [(reason, count, f"{count / max(total, 1):.1%}") for reason, count in facts["ignored"].items()]
        page.add_table(("ignored because", "regions", "share"), rows, "regions that would be ignored")
        sides, aspects = facts["short_sides"], facts["aspects"]
        page.add_bars(list(sides), list(sides.values()), "short side of the regions, in pixels of the model's input")
        page.add_bars(list(aspects), list(aspects.values()), "long side over short side")
        if (best := facts["ceiling"]) is not None:
            caption = (
                f"what a perfect map of the first {CEILING_PICTURES} pictures with text reaches: the most there is"
            )
            page.add_table(list(best), [list(best.values())], caption)
        page.add_text(f"{facts['texts']:,} regions have their text, {facts['curved']:,} have more than four corners.")


class RegionJudge:
    """Judges the chunks of one set and counts its regions; see `inkmill.data.jobs.check.SetJudge`."""

    def __init__(self, rules: RegionRules) -> None:
        self.rules = rules
        self.samples = self.without_regions = self.regions = self.learned = self.texts = self.curved = 0
        self.ignored: Counter[IgnoredFor] = Counter()
        self.shown: list[tuple[Polygons, tuple[int, int]]] = []
        self.sides, self.aspects = np.zeros(len(SIDES) - 1, np.int64), np.zeros(len(ASPECTS) - 1, np.int64)

    def judge(self, targets: Sequence[Target | None], sizes: NDArray[np.int32], lost: Collection[int]) -> Judged:
        """See SetJudge.judge. Where sizes are not known, what depends on them is not counted."""
        labels, faults = [], []
        for offset, (target, size) in enumerate(zip(targets, sizes.tolist(), strict=True)):
            labels.append(f"{len(target.points)} regions" if isinstance(target, Polygons) else "")
            if offset in lost or target is None:
                continue
            if not isinstance(target, Polygons):
                kind = type(target).__name__.lower()
                faults.append((offset, "no_regions_known", f"it has {kind}, and a detector learns from regions"))
            elif fault := _fault(target):
                faults.append((offset, "bad_region", fault))
            else:
                self._count(target, (size[0], size[1]))
        return Judged(labels, faults)

    def _count(self, target: Polygons, size: tuple[int, int]) -> None:
        self.samples += 1
        self.without_regions += not target.points
        self.regions += len(target.points)
        self.texts += sum(map(bool, target.texts))
        self.curved += sum(len(points) > 4 for points in target.points)
        if not target.points:
            return
        short, aspects, reasons = why_ignored(target, self.rules.resize, size, self.rules.min_side)
        self.ignored.update(reason for reason in reasons if reason)
        self.learned += reasons.count(None)
        if len(self.shown) < CEILING_PICTURES and all(size) and None in reasons:
            ignored = tuple(reason is not None for reason in reasons)
            self.shown.append((Polygons(target.points, ignored, target.texts), size))
        # What the label marks is not what is learned: its sides would only blur the histogram.
        shown = np.array([reason != "marked" for reason in reasons])
        self.sides += np.histogram(short[shown], SIDES)[0]
        self.aspects += np.histogram(aspects[shown], ASPECTS)[0]

    def facts(self) -> dict[str, Any]:
        """See SetJudge.facts."""
        return {
            "samples": self.samples,
            "without_regions": self.without_regions,
            "regions": self.regions,
            "learned": self.learned,
            "texts": self.texts,
            "curved": self.curved,
            "ignored": {reason: self.ignored[reason] for reason in get_args(IgnoredFor)},
            "short_sides": _named(self.sides, SIDES),
            "aspects": _named(self.aspects, ASPECTS),
            "ceiling": self._ceiling(),
        }

    def _ceiling(self) -> dict[str, float | None] | None:
        """Return what perfect maps of the first pictures reach; None where that cannot be told."""
        rules = self.rules
        if not self.shown or rules.maps is None or rules.decoding is None or not isinstance(rules.resize, PageResize):
            return None
        from inkmill.tasks.detection.ceiling import ceiling

        truths, sizes = zip(*self.shown, strict=True)
        return ceiling(truths, sizes, rules.resize, rules.maps, rules.decoding).table()


def why_ignored(
    target: Polygons, resize: Resize, size: tuple[int, int], min_side: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[IgnoredFor | None]]:
    """Return for each of R regions its short side, its aspect, and why learning ignores it, if it does.

    Args:
        target: R regions, at least one.
        resize: how the picture is brought to the input.
        size: its (width, height); 0 where that is not known, and then no region is too small or outside.
        min_side: the least short side, in pixels of the input.

    Returns:
        float64 (R,), the short side in pixels of the input (of the picture where its size is not known); float64 (R,),
        long side over short side; R reasons, None for what is learned.
    """
    known = bool(size[0] and size[1])
    columns, rows = _input_sides(resize, size) if known else (1, 1)
    across, down = (columns / size[0], rows / size[1]) if known else (1.0, 1.0)
    scaled = [points * np.array([across, down], np.float32) for points in target.points]
    sides = np.sort(np.array([cv2.minAreaRect(points)[1] for points in scaled], np.float64), axis=1)
    areas = np.array([cv2.contourArea(points) for points in target.points])
    reasons: list[IgnoredFor | None] = []
    for points, ignore, area, short in zip(target.points, target.ignore, areas, sides[:, 0], strict=True):
        reason: IgnoredFor | None = None
        if ignore:
            reason = "marked"
        elif area < _NO_AREA:
            reason = "no area"
        elif known and _share_inside(points, size) < _INSIDE:
            reason = "outside"
        elif known and short < min_side:
            reason = "too small"
        reasons.append(reason)
    return sides[:, 0], sides[:, 1] / np.maximum(sides[:, 0], 1e-6), reasons


def _input_sides(resize: Resize, size: tuple[int, int]) -> tuple[int, int]:
    """Return how many columns and rows of the input a picture fills."""
    if isinstance(resize, PageResize):
        return resize.page_size(*size)
    return resize.valid_width(*size), resize.rows(resize.bucket_width(*size))


def _share_inside(points: NDArray[np.float32], size: tuple[int, int]) -> float:
    """Return the share of a region's box that lies in the picture: close enough to its area, and cheap."""
    low, high = points.min(axis=0), points.max(axis=0)
    inside = np.minimum(high, size) - np.maximum(low, 0)
    whole = np.maximum(high - low, 1e-6)
    return float(np.prod(np.clip(inside / whole, 0, 1)))


def _fault(target: Polygons) -> str | None:
    """Return what is wrong with the target itself, which no format of ours gives, but a program may."""
    if len(target.ignore) != len(target.points) or len(target.texts) not in (0, len(target.points)):
        return f"{len(target.points)} regions have {len(target.ignore)} flags and {len(target.texts)} texts"
    for number, points in enumerate(target.points, 1):
        if points.ndim != 2 or points.shape[1] != 2 or not 3 <= len(points) <= _MOST_POINTS:
            return f"region {number} has shape {points.shape}, expected 3 to {_MOST_POINTS} corners of x and y"
        if not np.isfinite(points).all():
            return f"region {number} has a corner that is no number"
    return None


def _named(counts: NDArray[np.int64], edges: Sequence[float]) -> dict[str, int]:
    names = [f"{low:g}-{high:g}" if high < np.inf else f"≥{low:g}" for low, high in pairwise(edges)]
    return dict(zip(names, map(int, counts), strict=True))
