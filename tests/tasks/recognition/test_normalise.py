from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.errors import ConfigError
from inkmill.tasks.recognition.normalise import RULES, Normaliser

TYPOGRAPHIC = {
    "“": '"',
    "”": '"',
    "’": "'",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "Ð": "Đ",
    "ð": "đ",
    "Ö": "O",
    "Ō": "O",
    "Ü": "U",
    "Ū": "U",
    "Ā": "A",
    "ö": "o",
    "ō": "o",
    "ü": "u",
    "ū": "u",
    "ā": "a",
}


@pytest.mark.parametrize(("char", "replacement"), TYPOGRAPHIC.items())
def test_typographic_set_replaces(char: str, replacement: str) -> None:
    assert Normaliser(["typographic"]).apply(f"x{char}y") == f"x{replacement}y"


def test_typographic_set_replaces_nothing_else() -> None:
    assert dict(RULES.get("typographic")) == TYPOGRAPHIC


def test_without_rules_only_nfc_is_applied() -> None:
    normaliser = Normaliser()
    assert normaliser.apply(unicodedata.normalize("NFD", "Huế “…”")) == "Huế “…”"
    assert normaliser.report == {"NFC": 1}


def test_decomposed_character_meets_its_rule() -> None:
    assert Normaliser(["typographic"]).apply("o\u0308") == "o"


def test_report_counts_every_change() -> None:
    normaliser = Normaliser(["typographic"])
    assert normaliser.apply_all(["“a”", "“b", "plain"]) == ['"a"', '"b', "plain"]
    assert normaliser.report == {"'“' → '\"'": 2, "'”' → '\"'": 1}


def test_unknown_rule_set_names_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"rule set 'typografic' \(did you mean 'typographic'\?\)"):
        Normaliser(["typografic"])


@given(st.text())
def test_result_is_nfc_and_free_of_what_the_rules_replace(text: str) -> None:
    result = Normaliser(["typographic"]).apply(text + "o\u0308\u0302“")
    assert unicodedata.is_normalized("NFC", result)
    assert not set(result) & set("“”’–—−…")
