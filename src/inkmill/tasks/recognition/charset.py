"""The characters a reader knows, in the order of its classes.

A class is one Unicode code point in NFC: "ế" typed as one key or as three is the same class. The space is a character
like any other. Whatever a file holds beyond that (blank lines, repeats) is left out and noted, never passed over.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from inkmill.errors import CharsetError
from inkmill.files import write_text_atomic
from inkmill.tasks.recognition.normalise import nfc

# The largest public list has some 20,000 characters (90 KB); a file of megabytes is something else.
_MAX_BYTES = 4 << 20
_VOCAB = re.compile(r"^vocab[ \t]*:(?=[ \t\r\n])", re.MULTILINE)


@dataclass(frozen=True)
class Charset:
    """The characters a reader knows.

    Attributes:
        chars: one NFC code point each, no repeats; their order is the order of a model's classes.
        notes: what was left out or changed while it was made, one sentence each.

    Raises:
        CharsetError: empty, a repeat, a control character, or an entry that is not one NFC code point.
    """

    chars: tuple[str, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.chars:
            raise CharsetError("the character list is empty: it needs at least one character")
        for char in self.chars:
            if len(char) != 1 or nfc(char) != char:
                raise CharsetError(f"the class {char!r} is not one character in NFC: list single characters")
            if _is_control(char):
                raise CharsetError(f"{char!r} is a control character and cannot be read from an image: leave it out")
        repeated = [char for char, count in Counter(self.chars).items() if count > 1]
        if repeated:
            raise CharsetError(f"the character {repeated[0]!r} is listed twice: list each character once")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Charset:
        """Read a character list.

        Accepted: one class a line (TAO, PaddleOCR; a line holding one space is the space class), one line of many
        characters, or a YAML file with a `vocab:` entry (both vietocr). UTF-8, with or without BOM, LF or CRLF.

        Raises:
            CharsetError: no such file, not UTF-8, or a line that is not one character (with ``file:line``).
        """
        file = Path(path)
        text = _read_text(file)
        entry = _VOCAB.search(text)
        notes: list[str] = []
        chars = _from_vocab(file, text[entry.start() :]) if entry else _from_lines(file, text, notes)
        unique = dict.fromkeys(chars)
        if len(unique) < len(chars):
            repeats = sorted(char for char, count in Counter(chars).items() if count > 1)
            notes.append(f"{len(chars) - len(unique)} repeated entries left out: {' '.join(map(repr, repeats[:20]))}")
        try:
            return cls(tuple(unique), tuple(notes))
        except CharsetError as error:
            raise CharsetError(f"{file}: {error}") from None

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Charset:
        """Collect the characters of labels, sorted by code point; control characters are left out and noted.

        Raises:
            CharsetError: there is no character in the texts.
        """
        chars: set[str] = set()
        for text in texts:
            chars.update(nfc(text))
        control = {char for char in chars if _is_control(char)}
        notes = (f"control characters left out: {' '.join(map(repr, sorted(control)))}",) if control else ()
        if not chars - control:
            raise CharsetError("no label holds a character, so there is nothing to take a character list from")
        return cls(tuple(sorted(chars - control)), notes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one class a line, UTF-8, LF; `from_file` reads it back in the same order.

        Raises:
            OutputError: the place cannot be written.
        """
        write_text_atomic(Path(path), "".join(f"{char}\n" for char in self.chars))

    def unknown(self, text: str) -> str:
        """Return the characters of `text` that are not in the list, each once, in order of appearance."""
        return "".join(dict.fromkeys(char for char in text if char not in self._known))

    def __len__(self) -> int:
        return len(self.chars)

    def __contains__(self, char: object) -> bool:
        return char in self._known

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.chars)


def _is_control(char: str) -> bool:
    """Control characters end lines or mean nothing in an image; lone surrogates cannot be written as UTF-8."""
    return unicodedata.category(char) in ("Cc", "Cs")


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise CharsetError(f"cannot read the character list {file}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise CharsetError(f"{file} is larger than {_MAX_BYTES >> 20} MiB, which no character list is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CharsetError(
            f"{file}:{line}: not UTF-8 (byte 0x{data[error.start]:02x}): save the file as UTF-8"
        ) from None


def _from_lines(file: Path, text: str, notes: list[str]) -> list[str]:
    # Not splitlines(): that also splits at U+0085, U+2028 and others, which are characters here.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    filled = [(number, line) for number, line in enumerate(lines, 1) if line]
    if len(filled) < len(lines):
        notes.append(f"{len(lines) - len(filled)} blank lines left out (a space class is a line holding one space)")
    if len(filled) == 1:
        return list(nfc(filled[0][1]))
    return [char for number, line in filled for char in _one_class(file, number, line, notes)]


def _one_class(file: Path, number: int, line: str, notes: list[str]) -> str:
    """Return the class on a line: one character, save where NFC itself takes one character apart (U+0958 "क़")."""
    char = nfc(line)
    if len(char) == 1:
        return char
    if len(line) == 1:
        notes.append(f"line {number}: NFC writes {line!r} as {len(char)} characters, which became classes of their own")
        return char
    stripped = nfc(line.strip())
    if len(stripped) == 1:
        notes.append(f"line {number}: spaces around {stripped!r} left out")
        return stripped
    raise CharsetError(
        f"{file}:{number}: {line[:40]!r} holds {len(char)} characters where one was expected: "
        "put one character on each line, or all of them on a single line"
    )


def _from_vocab(file: Path, text: str) -> list[str]:
    """Return the characters of a `vocab:` entry; only that entry is parsed, the rest of a vietocr file is not ours."""
    import yaml

    lines = text.split("\n")
    end = next((i for i, line in enumerate(lines) if i and line[:1] not in ("", " ", "\t", "\r")), len(lines))
    try:
        vocab = yaml.safe_load("\n".join(lines[:end]))["vocab"]
    except yaml.YAMLError as error:
        reason = str(getattr(error, "problem", None) or error)
        raise CharsetError(f"{file}: the entry 'vocab' is not valid YAML ({reason}): quote the characters") from None
    # An unquoted 0123456789 is a number to YAML.
    if not isinstance(vocab, str) or not vocab:
        raise CharsetError(f"{file}: the entry 'vocab' must be a string of characters: put it in quotes")
    return list(nfc(vocab))
