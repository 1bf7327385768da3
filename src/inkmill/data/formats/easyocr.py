"""EasyOCR's `labels.csv`: the header `filename,words`; the first comma splits and nothing is quoted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar

from inkmill.data.formats.base import FORMATS, Entry, LabelFormat, unwritable
from inkmill.data.formats.lines import read_lines, write_lines
from inkmill.data.types import Target, Text
from inkmill.errors import LabelFileError

_HEADER = "filename,words"


@FORMATS.register("easyocr")
class EasyOcr(LabelFormat):
    """One image a line after the header: its name, a comma, its label, in which commas and quotes are just text."""

    name: ClassVar[str] = "easyocr"
    title: ClassVar[str] = "EasyOCR labels.csv: header filename,words; the first comma splits"
    example: ClassVar[str] = "a.png,New York, NY"
    file_name: ClassVar[str] = "labels.csv"
    image_folder: ClassVar[str] = ""

    def claims(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.claims`."""
        return f"the header is {_HEADER}" if head and head[0].strip() == _HEADER else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        lines = read_lines(path)
        number, header = next(lines, (1, ""))
        if header.strip() != _HEADER:
            raise LabelFileError(f"expected the header {_HEADER} and found {header[:80]!r}", path, number)
        for number, line in lines:
            name, comma, label = line.partition(",")
            if not comma or not name:
                raise LabelFileError(f"expected a file name, a comma and words, e.g. {self.example}", path, number)
            yield Entry(name, Text(label), number)

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`."""
        write_lines(path, chain([_HEADER], (f"{image},{text}" for image, text in self.checked(entries))))

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        return unwritable(image, ",") or super().refuses(image, target)
