"""Scores of a detector: the competition's rules against a plain loop, and what other programs get wrong."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.data.types import Polygons
from inkmill.errors import DataError
from inkmill.tasks.detection.metrics import best_threshold, match_regions, score
from inkmill.tasks.detection.overlaps import as_polygons, sides_of


def box(left, top, width, height):
    right, bottom = left + width, top + height
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def regions(*boxes, ignore=(), texts=()):
    return Polygons(tuple(boxes), tuple(ignore) or (False,) * len(boxes), tuple(texts))


def script(truths, found, limit):
    """The protocol of the competition's script, one pair at a time: (matched, regions to find, found that count)."""
    matched = wanted = counted = 0
    for truth, boxes in zip(truths, found, strict=True):
        real, said = [shapely.Polygon(one) for one in truth.points], [shapely.Polygon(one) for one in boxes]
        skipped = set()
        for place, one in enumerate(said):
            for other, ignore in zip(real, truth.ignore, strict=True):
                if ignore and one.intersection(other).area / one.area > 0.5:
                    skipped.add(place)
        free = set(range(len(said))) - skipped
        for one, ignore in zip(real, truth.ignore, strict=True):
            for place in sorted(free) if not ignore else ():
                shared = one.intersection(said[place]).area
                if shared / (one.area + said[place].area - shared) > limit:
                    matched += 1
                    free.remove(place)
                    break
        wanted += sum(not ignore for ignore in truth.ignore)
        counted += len(said) - len(skipped)
    return matched, wanted, counted


boxes = st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(3, 12)] * 2).map(lambda row: box(*row))
pictures = st.lists(
    st.tuples(st.lists(st.tuples(boxes, st.booleans()), max_size=5), st.lists(boxes, max_size=5)),
    min_size=1,
    max_size=3,
)


@given(pictures)
@settings(max_examples=60, deadline=None)
def test_scores_are_those_of_the_competition_s_script(rows):
    truths = [regions(*(one for one, _ in truth), ignore=[skip for _, skip in truth]) for truth, _ in rows]
    found = [boxes for _, boxes in rows]
    scores = score(truths, found)
    matched, wanted, counted = script(truths, found, 0.5)
    assert (scores.matched, scores.regions, scores.found) == (matched, wanted, counted)
    assert scores.recall == pytest.approx(matched / max(wanted, 1))
    assert scores.precision == pytest.approx(matched / max(counted, 1))
    assert scores.recall_iou70 == pytest.approx(script(truths, found, 0.7)[0] / max(wanted, 1))


def test_an_overlap_of_exactly_half_is_no_match():
    scores = score([regions(box(0, 0, 20, 10))], [[box(0, 0, 10, 10)]])
    assert (scores.matched, scores.hmean) == (0, 0)


def test_the_first_free_region_matches_and_not_the_best_one():
    truth = regions(box(0, 0, 10, 10))
    match = match_regions(truth, [box(0, 0, 10, 13), box(0, 0, 10, 10)])
    assert match.found.tolist() == [0]
    assert match.false.tolist() == [1]


def test_a_region_in_an_ignored_one_counts_neither_way():
    truth = regions(box(0, 0, 40, 10), box(0, 50, 40, 10), ignore=[True, False])
    match = match_regions(truth, [box(5, 0, 10, 10), box(0, 50, 40, 10)])
    assert (match.ignored.tolist(), match.false.tolist(), match.missed.tolist()) == ([0], [], [])
    assert score([truth], [[box(5, 0, 10, 10), box(0, 50, 40, 10)]]).hmean == 1


def test_shares_are_over_all_regions_and_not_means_over_pictures():
    many = [box(0, 20 * k, 30, 10) for k in range(9)]
    scores = score([regions(*many), regions(box(0, 0, 30, 10))], [many, []])
    assert scores.recall == pytest.approx(0.9)
    assert scores.precision == 1


def test_what_is_found_in_a_picture_without_text_is_false():
    truths = [regions(), regions(box(0, 0, 30, 10))]
    scores = score(truths, [[box(0, 0, 9, 9)], [box(0, 0, 30, 10)]])
    assert (scores.precision, scores.recall, scores.samples) == (0.5, 1, 2)


def test_a_set_without_text_is_scored():
    scores = score([regions(), regions()], [[], []])
    assert (scores.hmean, scores.regions, scores.mean_iou) == (0, 0, None)


def test_a_region_that_crosses_itself_counts_with_the_area_it_covers():
    bow = np.array([[0, 0], [20, 10], [20, 0], [0, 10]], np.float32)
    assert shapely.area(as_polygons([bow])[0]) == pytest.approx(100)
    scores = score([regions(bow)], [[bow]])
    assert (scores.regions, scores.found, scores.matched) == (1, 1, 1)
    assert scores.mean_iou == pytest.approx(1)


def test_small_regions_are_scored_though_training_ignores_them():
    assert score([regions(box(0, 0, 9, 3))], [[]]).regions == 1


def test_corners_are_rounded_only_where_the_script_s_whole_pixels_are_asked_for():
    truth, found = regions(box(0.9, 0.9, 10, 8)), [box(1.0, 1.0, 10, 8)]
    assert score([truth], [found]).mean_iou > 0.95
    assert score([truth], [found], whole_numbers=True).mean_iou == pytest.approx(9 * 7 / (80 + 80 - 9 * 7))


def test_scoring_chooses_no_threshold_by_itself():
    truths, found, confidences = _doubtful()
    assert score(truths, found, confidences).found == 3
    assert score(truths, found, confidences, threshold=0.6).found == 2


def test_the_best_threshold_is_chosen_by_the_h_mean():
    truths, found, confidences = _doubtful()
    chosen = best_threshold(truths, found, confidences)
    assert 0.4 < chosen <= 0.7
    assert score(truths, found, confidences, threshold=chosen).hmean == 1


def _doubtful():
    truth = regions(box(0, 0, 30, 10), box(0, 30, 30, 10))
    return [truth], [[box(0, 0, 30, 10), box(0, 30, 30, 10), box(90, 0, 9, 9)]], [np.array([0.7, 0.9, 0.4])]


def test_recall_is_told_by_height_and_by_aspect():
    scores = score([regions(box(0, 0, 60, 10), box(0, 30, 60, 40))], [[box(0, 30, 60, 40)]])
    assert scores.recall_by_height["8-12"] == (1, 0.0)
    assert scores.recall_by_height["32-48"] == (1, 1.0)
    assert scores.recall_by_aspect["5-8"] == (1, 0.0)


def test_sides_are_those_of_the_tightest_rectangle():
    turned = np.array([[0, 0], [30, 40], [22, 46], [-8, 6]], np.float32)  # 50 x 10, turned
    assert sides_of([turned])[0] == pytest.approx([10, 50], rel=1e-3)
    assert sides_of([]).shape == (0, 2)


def test_metrics_hold_the_headline_figures():
    scores = score([regions(box(0, 0, 60, 10))], [[box(0, 0, 60, 10)]])
    assert scores.headline() == dict.fromkeys(("hmean", "precision", "recall", "hmean_iou70", "cleval"), 1.0)
    assert scores.headline().items() <= scores.as_dict().items()


@pytest.mark.parametrize(("truths", "found"), [([], []), ([regions()], [])])
def test_nothing_to_compare_is_an_error(truths, found):
    with pytest.raises(DataError, match=r"nothing to score|cannot be compared"):
        score(truths, found)
