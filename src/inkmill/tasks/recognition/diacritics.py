"""Characters with and without their diacritics, for scores that tell a wrong letter from a wrong accent."""

from __future__ import annotations

import unicodedata
from functools import lru_cache


def strip_diacritics(text: str) -> str:
    """Return `text` in NFC without combining marks and strokes: "Đường" becomes "Duong"."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", "".join(map(_base, unicodedata.normalize("NFC", text))))


def has_diacritic(char: str) -> bool:
    """Tell whether an NFC character carries a diacritic: a combining mark, or a stroke such as that of "đ" and "ø"."""
    return _base(char) != char


@lru_cache(maxsize=1 << 16)
def _base(char: str) -> str:
    """Return a character without its marks; marks are category Mn, so Hangul and Indic vowel signs (Mc) stay."""
    letters = "".join(c for c in unicodedata.normalize("NFD", char) if unicodedata.category(c) != "Mn")
    if len(letters) != 1:
        return unicodedata.normalize("NFC", letters)
    # Unicode gives strokes no decomposition ("LATIN SMALL LETTER D WITH STROKE"): its name is the only tie to the base.
    base, _, mark = unicodedata.name(letters, "").partition(" WITH ")
    if not (mark.endswith("STROKE") and " LETTER " in base):
        return letters
    try:
        return unicodedata.lookup(base)
    except KeyError:  # as of ƛ: there is no lambda without its stroke by that name
        return letters
