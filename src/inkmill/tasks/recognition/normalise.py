"""What happens to a label before it is learned or compared: NFC always, named rule sets where asked for.

NFC (Unicode Annex 15) makes one spelling of characters that look alike: without it "ế" as one code point and as
three would be two answers to the same picture. A rule set maps characters to characters; what it changed is counted.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from inkmill.registry import Registry

RULES: Registry[Mapping[str, str]] = Registry("normalisation rule set")
"""Rule sets by name: a mapping of one character to its replacement."""


def _rule_set(name: str, rules: Mapping[str, str]) -> None:
    RULES.register(name)(rules)


# The characters that Vietnamese text takes from word processors and foreign keyboards. The macron and the diaeresis
# do not exist in Vietnamese, and the Icelandic eth is drawn like the Vietnamese capital d.
_rule_set(
    "typographic",
    {
        "\u201c": '"',
        "\u201d": '"',
        "\u2019": "'",
        "\u2013": "-",
        "\u2014": "-",
        "\u2212": "-",
        "\u2026": "...",
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
    },
)


def nfc(text: str) -> str:
    """Return `text` in Unicode Normalisation Form C."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


class Normaliser:
    """Applies NFC, then the rule sets in order, then NFC again.

    Args:
        rule_names: names of rule sets in `RULES`; none leaves NFC alone.

    Attributes:
        rule_names: the names, as given.
        report: how often each change was made, keyed ``'“' → '"'``; `NFC` counts the texts that NFC changed.

    Raises:
        ConfigError: no such rule set (the closest is named).
    """

    def __init__(self, rule_names: Sequence[str] = ()) -> None:
        self.rule_names = tuple(rule_names)
        self._tables = [RULES.get(name) for name in self.rule_names]
        self.report: Counter[str] = Counter()

    def apply(self, text: str) -> str:
        """Return the text normalised."""
        if text.isascii():
            return text if not self._tables else self._rules(text)
        composed = unicodedata.normalize("NFC", text)
        if composed != text:
            self.report["NFC"] += 1
        return nfc(self._rules(composed))

    def apply_all(self, texts: Iterable[str]) -> list[str]:
        """Return each text normalised, in order."""
        return [self.apply(text) for text in texts]

    def _rules(self, text: str) -> str:
        for table in self._tables:
            found = table.keys() & set(text)
            for char in found:
                self.report[f"{char!r} → {table[char]!r}"] += text.count(char)
            if found:
                text = "".join(table.get(char, char) for char in text)
        return text
