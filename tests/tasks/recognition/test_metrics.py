from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.errors import DataError
from inkmill.tasks.recognition.diacritics import has_diacritic, strip_diacritics
from inkmill.tasks.recognition.metrics import score

pairs = st.lists(st.tuples(st.text("aÁế đ1", max_size=8), st.text("aÁế đ1", max_size=8)), min_size=1, max_size=6)


def test_every_score_of_a_set_worked_by_hand() -> None:
    scores = score(["Huế 36!", "abc", "Đi"], ["Hue 36", "ABC", "Đi"])
    assert scores.as_dict() == {
        "samples": 3,
        "word_accuracy": pytest.approx(1 / 3),
        "word_accuracy_ignore_case": pytest.approx(2 / 3),
        "word_accuracy_36": pytest.approx(2 / 3),  # "hu36" is not "hue36": ế is no letter of the 36
        "cer": pytest.approx((2 + 3 + 0) / 12),
        "one_minus_ned": pytest.approx(1 - (2 / 7 + 1 + 0) / 3),
        "space_accuracy": 1.0,
        "diacritic_accuracy": pytest.approx(1 / 2),  # Đ right, ế read as e
        "word_accuracy_no_diacritics": pytest.approx(1 / 3),  # the lost "!" still counts
        "by_length": {
            "2": {"samples": 1, "word_accuracy": 1.0, "cer": 0.0},
            "3": {"samples": 1, "word_accuracy": 0.0, "cer": 1.0},
            "7": {"samples": 1, "word_accuracy": 0.0, "cer": pytest.approx(2 / 7)},
        },
    }
    assert json.loads(json.dumps(scores.as_dict())) == scores.as_dict()


def test_two_spellings_of_a_character_are_equal() -> None:
    decomposed = unicodedata.normalize("NFD", "Huế")
    assert score([decomposed], ["Huế"]).word_accuracy == 1
    assert score(["Huế"], [decomposed]).by_length.keys() == {3}


@pytest.mark.parametrize(
    ("truth", "prediction", "expected"),
    [
        ("a b c", "a b c", 1.0),
        ("a b c", "a bc", 2 * 1 / (2 + 1)),
        ("ab", "a b", 0.0),
        ("a b", "ab", 0.0),
        ("a bc d", "x bd d", 1.0),
        ("ab", "ab", None),
    ],
)
def test_space_accuracy_is_the_f1_of_the_spaces(truth: str, prediction: str, expected: float | None) -> None:
    assert score([truth], [prediction]).space_accuracy == (None if expected is None else pytest.approx(expected))


def test_space_accuracy_sums_over_the_set() -> None:
    assert score(["a b", "c d", "e"], ["a b", "cd", "e f"]).space_accuracy == pytest.approx(2 * 1 / (2 + 2))


def test_diacritic_accuracy_survives_a_shift() -> None:
    assert score(["đường"], ["xđường"]).diacritic_accuracy == 1
    assert score(["đường"], ["duong"]).diacritic_accuracy == 0
    assert score(["duong"], ["đường"]).diacritic_accuracy is None


def test_word_accuracy_without_diacritics_forgives_accents_alone() -> None:
    assert score(["Đường", "Huế"], ["Duong", "Hua"]).word_accuracy_no_diacritics == 0.5


def test_undefined_scores_are_none() -> None:
    scores = score([""], ["abc"])
    assert scores.cer is None
    assert scores.word_accuracy_36 is None
    assert scores.by_length[0].cer is None
    assert scores.one_minus_ned == 0


def test_cer_may_pass_one() -> None:
    assert score(["a"], ["abc"]).cer == 2


def test_two_empty_strings_are_equal() -> None:
    assert score([""], [""]).one_minus_ned == 1


@pytest.mark.parametrize(("truths", "predictions", "message"), [([], [], "nothing to score"), (["a"], [], "1 truths")])
def test_nothing_to_compare_is_an_error(truths: list[str], predictions: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        score(truths, predictions)


@given(pairs)
def test_scores_of_a_set_are_what_its_samples_add_up_to(batch: list[tuple[str, str]]) -> None:
    truths, predictions = [t for t, _ in batch], [p for _, p in batch]
    whole, alone = score(truths, predictions), [score([t], [p]) for t, p in batch]
    assert whole.word_accuracy == pytest.approx(sum(s.word_accuracy for s in alone) / len(batch))
    assert whole.one_minus_ned == pytest.approx(sum(s.one_minus_ned for s in alone) / len(batch))
    for value in (whole.space_accuracy, whole.diacritic_accuracy, whole.one_minus_ned):
        assert value is None or 0 <= value <= 1
    assert sum(s.samples for s in whole.by_length.values()) == len(batch)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_reading_everything_right_scores_one(truths: list[str]) -> None:
    scores = score(truths, truths)
    assert scores.word_accuracy == scores.word_accuracy_no_diacritics == scores.one_minus_ned == 1
    assert scores.space_accuracy in (None, 1)
    assert scores.diacritic_accuracy in (None, 1)
    assert scores.cer in (None, 0)


@pytest.mark.parametrize(("char", "base"), [("ế", "e"), ("Đ", "D"), ("đ", "d"), ("ø", "o"), ("ł", "l"), ("が", "か")])
def test_marks_and_strokes_are_diacritics(char: str, base: str) -> None:
    assert has_diacritic(char)
    assert strip_diacritics(char) == base


@pytest.mark.parametrize("char", ["a", "7", "ı", "한", "कि"[1], "ß", "字", "↔", " ", "\ud800"])
def test_other_characters_carry_none(char: str) -> None:
    assert not has_diacritic(char)
    assert strip_diacritics(char) == char


def test_every_letter_of_unicode_has_a_base_or_is_its_own() -> None:
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char).startswith("L"):
            assert has_diacritic(char) in (True, False)
    assert not has_diacritic("ƛ"), "there is no lambda without its stroke by that name"
