from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.errors import ConfigError
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import AttnCodec, CtcCodec
from inkmill.tasks.recognition.decoder import Lexicon, TextDecoder, read_words
from inkmill.tasks.recognition.normalise import Normaliser

CHARSET = Charset(tuple("abcd"))
CODEC = CtcCodec(CHARSET, 6)


def probabilities_of(texts: list[str], steps: int = 8, sure: float = 0.9) -> np.ndarray:
    """Frames that spell each text, a blank between all characters."""
    rest = (1 - sure) / len(CHARSET)
    found = np.full((len(texts), steps, 1 + len(CHARSET)), rest)
    for row, text in enumerate(texts):
        frames = [0] * steps
        frames[: 2 * len(text) : 2] = [1 + CHARSET.chars.index(c) for c in text]
        found[row, range(steps), frames] = sure
    return found


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_ways_that_agree_on_a_text_agree_on_its_confidence(seed: int, width: int) -> None:
    sharp = np.random.default_rng(seed).normal(size=(6, 7, 5)) * 4
    probabilities = np.exp(sharp) / np.exp(sharp).sum(axis=2, keepdims=True)
    texts, confidences = TextDecoder(CODEC).all(probabilities)
    searched, others = TextDecoder(CODEC, beam_width=width).all(probabilities)
    same = [a == b for a, b in zip(texts, searched, strict=True)]
    assert confidences[same] == pytest.approx(others[same], rel=1e-4)
    from_list, listed = TextDecoder(CODEC, words=[*filter(None, texts), "dddd"]).all(probabilities)
    same = [a == b and a != "" for a, b in zip(texts, from_list, strict=True)]
    assert confidences[same] == pytest.approx(listed[same], rel=1e-4)


def test_a_lexicon_gives_its_words_and_nothing_else() -> None:
    decoder = TextDecoder(CODEC, words=["abc", "dd", "zebra", "abcdabcd", "dd"])
    texts, confidences = decoder.all(probabilities_of(["abd", "dd", ""]))
    assert texts[:2] == ["abc", "dd"]
    assert confidences[1] == pytest.approx(0.9**2)
    assert confidences[0] == pytest.approx(0.9**2 * 0.025)


def test_a_lexicon_looks_at_the_probabilities_and_not_at_the_letters_alone() -> None:
    probabilities = probabilities_of(["ab"])
    probabilities[0, 2] = [0.02, 0.02, 0.5, 0.02, 0.44]  # "ab", almost "ad": both words are one edit away from "ab"
    assert TextDecoder(CODEC, words=["ac", "ad"]).all(probabilities)[0] == ["ad"]


def test_words_that_the_model_cannot_write_are_left_out_and_counted() -> None:
    lexicon = Lexicon(["abc", "zebra", "abcdabcd", ""], CODEC, Normaliser([]))
    assert (lexicon.words, lexicon.left_out) == (["abc"], 2)
    with pytest.raises(ConfigError, match="no word that this model can write"):
        Lexicon(["zebra"], CODEC, Normaliser([]))


def test_words_are_normalised_as_the_labels_were() -> None:
    codec = CtcCodec(Charset(tuple("ab'")), 6)
    assert Lexicon(["a\u2019b"], codec, Normaliser(["typographic"])).words == ["a'b"]
    with pytest.raises(ConfigError, match="no word"):
        Lexicon(["a\u2019b"], codec, Normaliser([]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"words": ["ab", 12]}, "12 is no text"), ({"beam_width": 0}, "=0: "), ({"beam_width": 2.5}, "=2.5: ")],
)
def test_what_is_no_word_or_no_width_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TextDecoder(CODEC, **settings)


def test_a_word_too_long_for_the_steps_does_not_win_by_accident() -> None:
    texts, confidences = TextDecoder(CODEC, words=["aaaaaa", "bbbbbb"]).all(probabilities_of(["b"], steps=3))
    assert texts == ["bbbbbb"]
    assert confidences.tolist() == [0.0]


def test_other_heads_take_the_nearest_word_and_no_beam() -> None:
    codec = AttnCodec(CHARSET, 6)
    decoder = TextDecoder(codec, words=["abc", "dddd"])
    assert not decoder.wants_all
    texts, confidences = decoder.best(np.array([[2, 3, 5, 1, 0, 0, 0]]), np.full((1, 7), 0.5))  # "abd"
    assert texts == ["abc"]
    assert confidences[0] == pytest.approx(0.5**3 * (1 - 1 / 3))
    with pytest.raises(ConfigError, match="beam search is for CTC, and this model has Attn"):
        TextDecoder(codec, beam_width=4)


def test_a_lexicon_file_is_words_by_line(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes("\ufeffHà Nội\r\n\r\nbia\n".encode())
    assert read_words(tmp_path / "words.txt") == ["Hà Nội", "bia"]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_words(tmp_path / "nothing.txt")


@pytest.mark.parametrize("words", ["words.txt", Path("words.txt"), b"words"])
def test_one_text_is_no_list_of_words(words: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a list of texts; read_words\(PATH\) reads a file"):
        TextDecoder(CtcCodec(Charset(tuple("dorstwx.")), 9), words=words)


@given(st.lists(st.lists(st.integers(0, 4), min_size=9, max_size=9), min_size=1, max_size=5))
def test_the_places_of_characters_are_the_runs_of_their_steps(rows: list[list[int]]) -> None:
    ids = np.array(rows)
    probabilities = np.random.default_rng(0).uniform(0.5, 1, ids.shape).astype(np.float32)
    located = TextDecoder(CODEC).located({"output_id": ids, "output_prob": probabilities})
    texts, confidences = CODEC.decode(ids, probabilities)
    assert [one.text for one in located] == texts
    for row, one, confidence in zip(ids, located, confidences, strict=True):
        for character, start, end in zip(one.text, one.starts * 9, one.ends * 9, strict=True):
            steps = row[round(float(start)) : round(float(end))]
            assert set(steps.tolist()) == {1 + CHARSET.chars.index(character)}
        assert not one.text or float(one.probabilities.prod()) == pytest.approx(float(confidence), rel=1e-4)


def test_the_places_of_characters_are_read_off_all_probabilities_too() -> None:
    (one,) = TextDecoder(CODEC, beam_width=3).located({"probabilities": probabilities_of(["abca"])})
    assert one.text == "abca"
    assert (one.starts * 8).tolist() == [0, 2, 4, 6]
    assert one.probabilities == pytest.approx(0.9)


def test_a_head_without_columns_has_no_places() -> None:
    with pytest.raises(ConfigError, match="Attn"):
        TextDecoder(AttnCodec(CHARSET, 6)).located({"output_id": np.zeros((1, 7)), "output_prob": np.zeros((1, 7))})
