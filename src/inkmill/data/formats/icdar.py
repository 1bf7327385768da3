r"""ICDAR's word lists (Robust Reading, word recognition): `word_1.png, "Text"`, quotes inside escaped as ``\"``.

Only quotes are escaped; a backslash before anything else is a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.types import Target, Text
from inkmill.errors import LabelFileError

# Greedy, so the text ends at the last quote of the line: quotes inside need no escape to be read.
_LINE = re.compile(r'(?P<name>[^,"]+),[ \t]*"(?P<text>.*)"[ \t]*')


@register
class Icdar(LabelFormat):
    """One image a line: its name, a comma, its label in double quotes."""

    name = "icdar"
    title = 'ICDAR word list: name, "text"'
    example = 'word_1.png, "New York"'
    specificity = 60
    file_name = "gt.txt"
    image_folder = ""

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        return 'every line is name, "text"' if head and all(map(_LINE.fullmatch, head)) else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        for number, line in read_lines(path):
            match = _LINE.fullmatch(line)
            if not match:
                raise LabelFileError(f"expected a name, a comma and a quoted text, e.g. {self.example}", path, number)
            yield Entry(match["name"].strip(), Text(match["text"].replace('\\"', '"')), number)

    def line(self, image: str, text: str) -> str:
        """See `LabelFormat.line`."""
        escaped = text.replace('"', '\\"')
        return f'{image}, "{escaped}"'

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        if image != image.strip():
            return "the image name begins or ends with a blank"
        return unwritable(image, ',"') or super().refuses(image, target)
