"""EasyOCR's `labels.csv`: the header `filename,words`; the first comma splits and nothing is quoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.types import Target, Text
from inkmill.errors import LabelFileError


@register
class EasyOcr(LabelFormat):
    """One image a line after the header: its name, a comma, its label, in which commas and quotes are ordinary text."""

    name: ClassVar[str] = "easyocr"
    title: ClassVar[str] = "EasyOCR labels.csv: header filename,words; the first comma splits"
    example: ClassVar[str] = "a.png,New York, NY"
    header: ClassVar[str] = "filename,words"
    specificity: ClassVar[int] = 50
    file_name: ClassVar[str] = "labels.csv"
    image_folder: ClassVar[str] = ""

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        return f"the header is {self.header}" if head and head[0].strip() == self.header else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        lines = read_lines(path)
        number, header = next(lines, (1, ""))
        if header.strip() != self.header:
            raise LabelFileError(f"expected the header {self.header} and found {header[:80]!r}", path, number)
        for number, line in lines:
            name, comma, label = line.partition(",")
            if not comma or not name:
                raise LabelFileError(f"expected a file name, a comma and words, e.g. {self.example}", path, number)
            yield Entry(name, Text(label), number)

    def line(self, image: str, text: str) -> str:
        """See `LabelFormat.line`."""
        return f"{image},{text}"

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        return unwritable(image, ",") or super().refuses(image, target)
