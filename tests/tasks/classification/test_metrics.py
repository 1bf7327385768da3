from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inkmill.errors import DataError
from inkmill.tasks.classification.metrics import (
    average_precision,
    average_precision_11_point,
    best_thresholds,
    confusion_counts,
    score,
)

sklearn = pytest.importorskip("sklearn.metrics")
NAMES = ("a", "b", "c", "d", "e", "f", "g")


@st.composite
def scored(draw: st.DrawFn, classes: int = 7) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Labels in which every class occurs, and probabilities with ties."""
    samples = draw(st.integers(2, 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = (random.random((samples, classes)) < draw(st.floats(0.05, 0.95))).astype(np.int8)
    labels[random.integers(samples, size=classes), np.arange(classes)] = 1
    steps = draw(st.sampled_from([2, 5, 1000]))  # few steps: many equal scores
    return labels, random.integers(0, steps + 1, (samples, classes)) / steps


@settings(max_examples=60)
@given(scored())
def test_multilabel_scores_are_those_of_scikit_learn(case: tuple[NDArray[np.int8], NDArray[np.float64]]) -> None:
    labels, scores = case
    found = score(labels, scores, NAMES, exclusive=False)
    assert found.map == pytest.approx(sklearn.average_precision_score(labels, scores, average="macro"), abs=1e-9)
    for i, one in enumerate(found.per_class):
        expected = sklearn.average_precision_score(labels[:, i], scores[:, i])
        assert one.average_precision == pytest.approx(expected, abs=1e-9)
    said = (scores >= 0.5).astype(int)
    assert found.f1_micro == pytest.approx(sklearn.f1_score(labels, said, average="micro"), abs=1e-9)
    assert found.f1_macro == pytest.approx(sklearn.f1_score(labels, said, average="macro", zero_division=0), abs=1e-9)
    tuned = (scores >= best_thresholds(labels, scores)).astype(int)
    expected = sklearn.f1_score(labels, tuned, average="macro", zero_division=0)
    assert found.f1_macro_tuned == pytest.approx(expected, abs=1e-9)
    assert found.subset_accuracy == pytest.approx(sklearn.accuracy_score(labels, tuned), abs=1e-9)


@settings(max_examples=60)
@given(st.integers(2, 80), st.integers(0, 2**32 - 1))
def test_exclusive_scores_are_those_of_scikit_learn(samples: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.integers(7, size=samples)
    scores = random.dirichlet(np.ones(7), samples)
    found = score(np.eye(7, dtype=np.int8)[truth], scores, NAMES, exclusive=True)
    every = np.arange(7)
    assert found.top1 == pytest.approx(sklearn.accuracy_score(truth, scores.argmax(axis=1)), abs=1e-9)
    assert found.top5 == pytest.approx(sklearn.top_k_accuracy_score(truth, scores, k=5, labels=every), abs=1e-9)
    assert found.confusion is not None
    assert np.array_equal(found.confusion, sklearn.confusion_matrix(truth, scores.argmax(axis=1), labels=every))


@settings(max_examples=60)
@given(scored(classes=1))
def test_no_threshold_has_a_better_f1_than_the_tuned_one(case: tuple[NDArray[np.int8], NDArray[np.float64]]) -> None:
    labels, scores = case

    def f1(threshold: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(sklearn.f1_score(labels[:, 0], (scores[:, 0] >= threshold).astype(int), zero_division=0))

    tuned = f1(float(best_thresholds(labels, scores)[0]))
    assert all(tuned >= f1(float(other)) - 1e-9 for other in np.unique(scores))


def test_a_class_without_positives_is_left_out_of_the_means_and_named() -> None:
    labels = np.array([[1, 0], [0, 0], [1, 0]], np.int8)
    scores = np.array([[0.9, 0.8], [0.1, 0.2], [0.8, 0.7]])
    found = score(labels, scores, ("seen", "never"), exclusive=False)
    assert found.without_positives == ("never",)
    assert (found.map, found.f1_macro, found.per_class[1].average_precision) == (1.0, 1.0, None)
    # Its false positives are no part of the pooled decisions either: the class is not judged at all.
    assert found.f1_micro == 1.0


def test_unknown_labels_count_nowhere() -> None:
    labels = np.array([[1], [0], [-1], [1]], np.int8)
    scores = np.array([[0.9], [0.3], [0.95], [0.6]])
    known = labels[:, 0] >= 0
    assert average_precision(labels[:, 0], scores[:, 0]) == average_precision(labels[known, 0], scores[known, 0])
    assert confusion_counts(labels, scores, np.array([0.5])).tolist() == [[2, 0, 0]]
    found = score(labels, scores, ("a",), exclusive=False)
    assert (found.per_class[0].unknown, found.subset_accuracy, found.map) == (1, 1.0, 1.0)


def test_the_11_point_average_is_that_of_voc_2007() -> None:
    # Ranked: hit, miss, hit. Best precision is 1 up to recall .5 (6 points) and 2/3 beyond (5 points).
    labels, scores = np.array([1, 0, 1], np.int8), np.array([0.9, 0.8, 0.7])
    assert average_precision_11_point(labels, scores) == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)


def test_given_thresholds_are_used_instead_of_tuned_ones() -> None:
    labels, scores = np.array([[1], [0]], np.int8), np.array([[0.4], [0.3]])
    assert score(labels, scores, ("a",), False).f1_macro_tuned == 1.0
    assert score(labels, scores, ("a",), False, thresholds=[0.2]).f1_macro_tuned == pytest.approx(2 / 3)


def test_metrics_are_plain_values_with_a_table_by_class() -> None:
    found = score(np.eye(3, dtype=np.int8), np.eye(3), ("x", "y", "z"), exclusive=True)
    values = found.as_dict()
    assert values["per_class"]["y"]["average_precision"] == 1.0
    assert values["confusion"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert (found.primary, next(iter(found.headline()))) == (1.0, "top1")


def test_nothing_to_score_is_one_sentence() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        score(np.empty((0, 2), np.int8), np.empty((0, 2)), ("a", "b"), False)
