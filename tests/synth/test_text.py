"""Synthetic texts: what is drawn, from its sample's state alone, and that all of it can be read."""

from __future__ import annotations

import unicodedata
from collections import Counter

import numpy as np
import pytest

from inkmill.data.augment.random_numbers import sample_states
from inkmill.errors import ConfigError, DataError
from inkmill.synth.characters import CHARACTERS, VIETNAMESE
from inkmill.synth.text import CASES, TextSampler


@pytest.fixture(scope="module")
def sampler() -> TextSampler:
    return TextSampler()


@pytest.fixture(scope="module")
def many(sampler) -> list[str]:
    return drawn(sampler, 60_000)


def drawn(sampler: TextSampler, count: int, seed: int = 0) -> list[str]:
    return sampler.strings(sampler.sample(sample_states(seed, 0, np.arange(count))))


def test_a_text_depends_on_its_own_state_alone(sampler):
    states = sample_states(5, 1, np.arange(400))
    together = sampler.strings(sampler.sample(states))
    order = np.random.default_rng(0).permutation(400)
    apart = [text for part in np.split(states[order], 8) for text in sampler.strings(sampler.sample(part))]
    assert apart == [together[number] for number in order]
    assert together != drawn(sampler, 400, seed=6)


def test_texts_are_nfc_and_neither_empty_nor_edged_with_spaces(many):
    assert all(many)
    assert all(text == text.strip() and "  " not in text for text in many)
    assert all(unicodedata.normalize("NFC", text) == text for text in many)


def test_every_character_is_drawn_at_least_twice_in_ten_thousand(many):
    counts = Counter("".join(many))
    shares = {character: counts[character] / counts.total() for character in CHARACTERS}
    assert min(shares.values()) > 1.6e-4  # 2e-4, less three times the deviation of so many


def test_words_are_cased_as_signs_are(many):
    words = [text for text in many if text.isalpha() and text.isascii() and len(text) > 3]
    shares = [np.mean([case(word) for word in words]) for case in (str.isupper, str.islower, str.istitle)]
    assert shares == pytest.approx(CASES[:3], abs=0.05)


def test_all_kinds_of_text_come(many):
    texts = "\n".join(many)
    for sign in ("@gmail.com", "www.", "%", "$", "000đ", " AM", "/19", "Nguyễn "):
        assert sign in texts
    letters = Counter(character for character in texts if character in VIETNAMESE)
    assert len(letters) == len(VIETNAMESE)


def test_lines_are_longer_than_words_and_end_at_the_longest():
    lines = drawn(TextSampler(lines=1, longest=40), 2000)
    assert np.median([len(line) for line in lines]) > 20
    assert max(map(len, lines)) == 40


def test_only_given_characters_are_drawn():
    digits = TextSampler(characters="0123456789/-")
    texts = drawn(digits, 500)
    assert set("".join(texts)) <= set("0123456789/-")
    assert len(set(texts)) > 100
    assert any("en_word" in note for note in digits.notes)
    with pytest.raises(ConfigError, match="no text can be drawn"):
        TextSampler(characters="一二")


def test_words_of_a_file_are_drawn_by_the_root_of_their_frequency(tmp_path):
    (tmp_path / "words.tsv").write_text("oft\t900\nselten\t100\nПривет\t100\n", "utf-8")
    sampler = TextSampler({}, texts=[(str(tmp_path / "words.tsv"), 1)])
    counts = Counter(text.lower() for text in drawn(sampler, 4000))
    assert counts["oft"] / counts["selten"] == pytest.approx(3, rel=0.2)
    assert sum(counts.values()) == counts["oft"] + counts["selten"]
    assert "1 of 3" in sampler.notes[0]


def test_pieces_of_running_text_never_cross_its_lines(tmp_path):
    (tmp_path / "text.txt").write_text("eins zwei drei\nvier sechs\n", "utf-8")
    texts = {text.lower() for text in drawn(TextSampler({}, texts=[(str(tmp_path / "text.txt"), 1)]), 500)}
    assert texts == {"eins", "eins zwei", "eins zwei drei", "zwei", "zwei drei", "drei", "vier", "vier sechs", "sechs"}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b"", "is empty"), (b"gr\xfcn", "not UTF-8")]
)
def test_a_text_file_that_cannot_be_used_is_named(tmp_path, content, message):
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        TextSampler(texts=[(str(path), 1)])
    assert str(path) in str(error.value)


def test_an_unknown_language_is_an_error_that_lists_the_known():
    with pytest.raises(ConfigError, match=r"'fr'.*en, vi"):
        TextSampler({"fr": 1})
