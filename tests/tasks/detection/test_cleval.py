"""CLEval by hand-made pictures whose counts can be told by eye."""

from __future__ import annotations

import numpy as np
import pytest

from inkmill.data.types import Polygons
from inkmill.tasks.detection.cleval import character_centres, count_characters
from inkmill.tasks.detection.metrics import score
from inkmill.tasks.detection.overlaps import as_polygons, overlaps


def box(left, top, width, height):
    right, bottom = left + width, top + height
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def count(boxes, texts, found, ignore=()):
    truth = Polygons(tuple(boxes), tuple(ignore) or (False,) * len(boxes), tuple(texts))
    wanted, polygons = as_polygons(truth.points), as_polygons(found)
    return count_characters(truth, found, wanted, polygons, overlaps([wanted], [polygons])[0])


WORD = box(0, 0, 100, 20)


def test_a_word_that_is_covered_counts_with_each_character():
    counts = count([WORD], ["hello"], [box(-3, -3, 106, 26)])
    assert (counts.characters, counts.found, counts.boxed) == (5, 5, 5)
    assert counts.hmean == pytest.approx(1)


def test_a_word_that_is_cut_off_loses_characters():
    counts = count([WORD], ["hello"], [box(0, 0, 60, 20)])
    assert (counts.found, counts.recall, counts.precision) == (3, 0.6, 1)


def test_a_word_in_pieces_costs_recall_a_character_each():
    counts = count([WORD], ["hello"], [box(0, 0, 40, 20), box(40, 0, 60, 20)])
    assert (counts.splits, counts.found, counts.recall, counts.precision) == (1, 5, 0.8, 1)


def test_a_region_over_two_words_costs_precision_a_character():
    counts = count([WORD, box(110, 0, 100, 20)], ["hello", "world"], [box(0, 0, 210, 20)])
    assert (counts.merges, counts.found, counts.recall, counts.precision) == (1, 10, 1, 0.9)


def test_a_character_that_is_found_twice_counts_once():
    counts = count([WORD], ["hello"], [box(0, 0, 60, 20), box(40, 0, 60, 20)])
    assert (counts.found, counts.boxed, counts.overlapped) == (5, 6, 1)


def test_a_wide_false_region_costs_one_character_and_a_tall_one_up_to_ten():
    assert count([WORD], ["hello"], [box(0, 100, 300, 20)]).boxed == 1
    assert count([WORD], ["hello"], [box(0, 100, 20, 64)]).boxed == 4  # round(0.5 + 3.2)
    assert count([WORD], ["hello"], [box(0, 100, 10, 300)]).boxed == 10


def test_a_region_in_an_ignored_text_counts_nowhere():
    counts = count([WORD], [""], [box(0, 0, 60, 20)], ignore=[True])
    assert (counts.characters, counts.boxed) == (0, 0)


def test_a_text_to_find_is_cut_out_of_an_ignored_one():
    counts = count([box(-10, -10, 200, 60), WORD], ["", "hello"], [WORD], ignore=[True, False])
    assert (counts.found, counts.boxed) == (5, 5)


def test_a_region_that_is_mostly_ground_matches_nothing():
    counts = count([WORD], ["hello"], [box(0, 0, 100, 80)])
    assert (counts.found, counts.boxed) == (0, 1)


def test_a_text_that_nobody_knows_counts_by_its_shape():
    assert count([box(0, 0, 104, 20)], [""], []).characters == 6  # round(0.5 + 5.2)
    assert count([box(0, 0, 900, 20)], [], []).characters == 10


def test_characters_lie_along_the_middle_of_any_shape():
    assert character_centres(WORD, 2) == pytest.approx(np.array([[25, 10], [75, 10]]))
    assert character_centres(box(0, 0, 20, 100), 2) == pytest.approx(np.array([[10, 75], [10, 25]]))
    bent = np.array([[0, 0], [50, 20], [100, 0], [100, 10], [50, 30], [0, 10]], np.float32)
    assert character_centres(bent, 2) == pytest.approx(np.array([[25, 15], [75, 15]]))
    assert character_centres(bent[:5], 3).shape == (3, 2)


def test_counts_of_pictures_add_up_to_the_score_of_the_set():
    truths = [Polygons((WORD,), (False,), ("hello",)), Polygons((WORD,), (False,), ("x",))]
    scores = score(truths, [[box(0, 0, 60, 20)], []])
    assert (scores.cleval_recall, scores.cleval_precision) == (0.5, 1)
