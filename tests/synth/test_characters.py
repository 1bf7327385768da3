"""The reader's characters: one class a code point, NFC, all of Vietnamese."""

from __future__ import annotations

import unicodedata

from inkmill.synth.characters import ASCII, CHARACTERS, SIGNS, VIETNAMESE


def test_a_reader_knows_every_character_once() -> None:
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 255
    assert [len(ASCII), len(SIGNS)] == [95, 26]


def test_vietnamese_is_134_letters_of_one_code_point() -> None:
    assert len(VIETNAMESE) == 134
    assert all(letter.isalpha() for letter in VIETNAMESE)
    assert unicodedata.normalize("NFC", VIETNAMESE) == VIETNAMESE
    assert VIETNAMESE[:67].upper() == VIETNAMESE[67:]


def test_a_vietnamese_sentence_is_readable() -> None:
    sentence = unicodedata.normalize("NFC", "Phở bò Nguyễn Huệ – 45.000₫, giờ mở cửa: 6h30 “cả tuần”")
    assert not set(sentence) - set(CHARACTERS)
