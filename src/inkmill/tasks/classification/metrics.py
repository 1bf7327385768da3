"""Scores of a classifier from label matrices and probabilities: average precision, F1, top-k, confusion.

A label is 1 (present), 0 (absent) or -1 (unknown); what is unknown counts nowhere. A class without a known positive has
no average precision and no recall: it is left out of every mean and named in `without_positives`, where torchmetrics
counts it as 0 and so makes a set look worse the fewer of its classes occur.

Average precision is the all-point one (scikit-learn's): the sum over distinct scores of the gain in recall times the
precision there. `map_11_point` is PASCAL VOC 2007's: the mean of the best precision at recalls of at least 0, 0.1, … 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.errors import DataError
from inkmill.tasks.base import Scores

Labels = NDArray[np.int8]
"""int8 (N, C): 1 present, 0 absent, -1 unknown."""
Probabilities = NDArray[np.floating[Any]]
"""float (N, C), 0..1."""

UNKNOWN = -1

FIGURES: Mapping[bool, Mapping[str, str]] = {
    True: {"top1": "top-1", "map": "mAP", "f1_macro": "F1 (macro)"},
    False: {"map": "mAP", "f1_micro": "F1 (micro)", "f1_macro": "F1 (macro)"},
}
"""What is shown after each epoch, the primary figure first, by whether classes are exclusive."""


@dataclass(frozen=True, slots=True)
class ClassScores:
    """The scores of one class; None where the class has no known positive.

    Attributes:
        positives, unknown: samples that show the class, and samples of which it is not known.
        average_precision: all-point.
        average_precision_11_point: PASCAL VOC 2007's.
        f1: at the threshold 0.5.
        threshold: what the class is said to be present from on.
        f1_at_threshold: F1 there.
    """

    name: str
    positives: int
    unknown: int
    average_precision: float | None
    average_precision_11_point: float | None
    f1: float | None
    threshold: float
    f1_at_threshold: float | None


@dataclass(frozen=True)
class ClassificationScores(Scores):
    """The scores of one set.

    Attributes:
        samples: how many images were compared.
        exclusive: whether an image has exactly one class; then `top1` is the primary figure, else `map`.
        map, map_11_point: means of the average precisions; None where no class has a positive.
        f1_micro, f1_macro: at the threshold 0.5; micro pools all decisions, macro is the mean over classes.
        f1_micro_tuned, f1_macro_tuned: the same at each class's own threshold.
        top1, top5: share of the images whose class is the most probable one, or among the five most probable.
        subset_accuracy: share of the images of which every known label is right at the classes' thresholds.
        without_positives: classes that no image shows; they are in no mean.
        confusion: exclusive only: images by true class (outer) and most probable class (inner), in class order.
        per_class: in class order.
    """

    samples: int
    exclusive: bool
    map: float | None
    map_11_point: float | None
    f1_micro: float | None
    f1_macro: float | None
    f1_micro_tuned: float | None
    f1_macro_tuned: float | None
    top1: float | None
    top5: float | None
    subset_accuracy: float
    without_positives: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    per_class: tuple[ClassScores, ...]

    def headline(self) -> dict[str, float]:
        """Return the figures of `FIGURES`; one that the set does not define is 0 here."""
        names = FIGURES[self.exclusive]
        return {name: getattr(self, name) or 0.0 for name in names}

    def rank(self) -> tuple[float, ...]:
        """Return the figures of `headline`, the primary one first."""
        return tuple(self.headline().values())

    def table(self) -> dict[str, float | None]:
        """Return the columns of the table that `evaluate` prints."""
        shown = {"top-1": self.top1, "top-5": self.top5} if self.exclusive else {"all labels": self.subset_accuracy}
        return {"mAP": self.map, **shown, "F1 micro": self.f1_micro, "F1 macro": self.f1_macro}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for metrics.json, the classes under `per_class` by name."""
        values = asdict(self)
        values["without_positives"] = list(self.without_positives)
        values["confusion"] = None if self.confusion is None else [list(row) for row in self.confusion]
        values["per_class"] = {one.pop("name"): one for one in values["per_class"]}
        return values


def score(
    labels: Labels,
    probabilities: Probabilities,
    names: Sequence[str],
    exclusive: bool,
    thresholds: Sequence[float] | None = None,
) -> ClassificationScores:
    """Compare probabilities with labels.

    Args:
        labels: int8 (N, C).
        probabilities: float (N, C).
        names: C class names.
        exclusive: whether each image has exactly one class.
        thresholds: one a class, from which on it is said to be present; by default those with the best F1 on this
            very set, which is what validation stores and what flatters a test set.

    Raises:
        DataError: nothing to score, or shapes that differ.
    """
    if not len(labels):
        raise DataError("there is nothing to score: the set has no samples")
    if labels.shape != probabilities.shape or labels.shape[1] != len(names):
        raise DataError(
            f"labels of shape {labels.shape} cannot be compared with probabilities of shape {probabilities.shape} for "
            f"{len(names)} classes"
        )
    # 1. Each class by itself: its ranking, and its F1 at 0.5 and at its threshold.
    chosen = best_thresholds(labels, probabilities) if thresholds is None else np.asarray(thresholds, np.float64)
    counts = confusion_counts(labels, probabilities, np.full(len(names), 0.5))
    tuned = confusion_counts(labels, probabilities, chosen)
    per_class = tuple(
        _class_scores(name, labels[:, i], probabilities[:, i], counts[i], tuned[i], float(chosen[i]))
        for i, name in enumerate(names)
    )
    # 2. Means over the classes that occur.
    occurs = np.array([one.positives > 0 for one in per_class])
    precisions = [one.average_precision for one in per_class if one.average_precision is not None]
    precisions_11 = [one.average_precision_11_point for one in per_class if one.average_precision_11_point is not None]
    decided = (probabilities >= chosen) == (labels == 1)
    return ClassificationScores(
        samples=len(labels),
        exclusive=exclusive,
        map=_mean(precisions),
        map_11_point=_mean(precisions_11),
        f1_micro=_f1(counts[occurs].sum(axis=0)),
        f1_macro=_mean([one.f1 for one in per_class if one.f1 is not None]),
        f1_micro_tuned=_f1(tuned[occurs].sum(axis=0)),
        f1_macro_tuned=_mean([one.f1_at_threshold for one in per_class if one.f1_at_threshold is not None]),
        # 3. What only exclusive classes have: ranks of the true class, and which class it was taken for.
        top1=_top(labels, probabilities, 1) if exclusive else None,
        top5=_top(labels, probabilities, 5) if exclusive else None,
        subset_accuracy=float((decided | (labels == UNKNOWN)).all(axis=1).mean()),
        without_positives=tuple(one.name for one in per_class if not one.positives),
        confusion=_confusion(labels, probabilities) if exclusive else None,
        per_class=per_class,
    )


def average_precision(labels: Labels, scores: Probabilities) -> float | None:
    """Return the all-point average precision of one class; None without a positive.

    Args:
        labels: int8 (N,).
        scores: float (N,); equal scores count as one threshold, whatever their order.
    """
    recall, precision = _curve(labels, scores)
    if recall is None:
        return None
    return float((np.diff(recall, prepend=0.0) * precision).sum())


def average_precision_11_point(labels: Labels, scores: Probabilities) -> float | None:
    """Return PASCAL VOC 2007's average precision of one class; None without a positive."""
    recall, precision = _curve(labels, scores)
    if recall is None:
        return None
    best = [precision[recall >= at - 1e-12].max(initial=0.0) for at in np.arange(11) / 10]
    return float(np.mean(best))


def best_thresholds(labels: Labels, probabilities: Probabilities) -> NDArray[np.float64]:
    """Return for each class the threshold with the best F1: float64 (C,), halfway between two neighbouring scores.

    A class without a positive keeps 0.5; of several thresholds that are equally good, the highest is taken.
    """
    return np.array([_best_threshold(labels[:, i], probabilities[:, i]) for i in range(labels.shape[1])])


def confusion_counts(
    labels: Labels, probabilities: Probabilities, thresholds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return true positives, false positives and false negatives of each class: int64 (C, 3)."""
    said, known = probabilities >= thresholds, labels != UNKNOWN
    shown = labels == 1
    return np.stack([(said & shown).sum(0), (said & ~shown & known).sum(0), (~said & shown).sum(0)], axis=1)


def _curve(labels: Labels, scores: Probabilities) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
    """Return recall and precision at each distinct score, from the highest on; None without a positive."""
    known = labels != UNKNOWN
    shown, scores = labels[known] == 1, scores[known]
    if not shown.any():
        return None, np.empty(0)
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # of each run of equal scores
    hits = np.cumsum(shown[order])[last].astype(np.float64)
    return hits / shown.sum(), hits / (last + 1)


def _best_threshold(labels: Labels, scores: Probabilities) -> float:
    recall, precision = _curve(labels, scores)
    if recall is None:
        return 0.5
    distinct = np.unique(scores[labels != UNKNOWN])[::-1].astype(np.float64)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(f1.argmax())
    below = distinct[best + 1] if best + 1 < len(distinct) else 0.0
    return float((distinct[best] + below) / 2)


def _class_scores(
    name: str,
    labels: Labels,
    scores: Probabilities,
    counts: NDArray[np.int64],
    tuned: NDArray[np.int64],
    threshold: float,
) -> ClassScores:
    positives = int((labels == 1).sum())
    return ClassScores(
        name,
        positives,
        int((labels == UNKNOWN).sum()),
        average_precision(labels, scores),
        average_precision_11_point(labels, scores),
        _f1(counts) if positives else None,
        threshold,
        _f1(tuned) if positives else None,
    )


def _f1(counts: NDArray[np.int64]) -> float | None:
    """Return 2 TP / (2 TP + FP + FN); None where nothing is there and nothing was said."""
    true, false, missed = counts.tolist()
    whole = 2 * true + false + missed
    return 2 * true / whole if whole else None


def _top(labels: Labels, probabilities: Probabilities, k: int) -> float:
    """Return the share of images whose class is among the k most probable; a tie counts for the earlier class."""
    truth = labels.argmax(axis=1)
    rows = np.arange(len(labels))
    own = probabilities[rows, truth][:, None]
    earlier = np.arange(labels.shape[1]) < truth[:, None]
    before = (probabilities > own) | ((probabilities == own) & earlier)
    return float((before.sum(axis=1) < k).mean())


def _confusion(labels: Labels, probabilities: Probabilities) -> tuple[tuple[int, ...], ...]:
    classes = labels.shape[1]
    pairs = labels.argmax(axis=1) * classes + probabilities.argmax(axis=1)
    counts = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    return tuple(tuple(row) for row in counts.tolist())


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
