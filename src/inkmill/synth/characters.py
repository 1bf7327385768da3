"""The characters of the shipped reader: English and Vietnamese, print and scenes, one class a code point in NFC.

Order is the order of a model's classes, so it never changes: new characters go to the end.
"""

from __future__ import annotations

import unicodedata
from itertools import product

ASCII = " " + "".join(map(chr, range(33, 127)))
"""The space and all printable ASCII, 95 characters."""

TONES = ("", "\u0300", "\u0301", "\u0303", "\u0309", "\u0323")
"""The six tones as combining marks: none, grave, acute, tilde, hook above, dot below."""

VOWELS = "aăâeêioôơuưy"
"""The twelve vowel letters that carry a tone."""


def _vietnamese() -> str:
    """Return the letters that are not ASCII, lower case first: đ and each vowel with each tone."""
    lower = [unicodedata.normalize("NFC", vowel + tone) for vowel, tone in product(VOWELS, TONES)]
    lower = [*(letter for letter in lower if not letter.isascii()), "đ"]
    return "".join(lower) + "".join(lower).upper()


VIETNAMESE = _vietnamese()
"""The 134 Vietnamese letters beyond ASCII, both cases, NFC."""

SIGNS = "€£¥₫°–—‘’“”…•©®™×½§«»²³µ±·"
"""The usual signs of print."""

CHARACTERS = ASCII + VIETNAMESE + SIGNS
"""All 255 characters, in the order of the classes."""
