"""EasyOCR's `labels.csv`: the header `filename,words`; the first comma splits and nothing is quoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.types import Target, Text
from inkmill.errors import LabelFileError


@register
class EasyOcr(LabelFormat):
    """One image a line after the header: its name, a comma, its label, in which commas and quotes are ordinary text."""

    name = "easyocr"
    title = "EasyOCR labels.csv: header filename,words; the first comma splits"
    example = "a.png,New York, NY"
    header = "filename,words"
    specificity = 50
    file_name = "labels.csv"
    image_folder = ""

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        return f"the header is {self.header}" if head and head[0].strip() == self.header else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        lines = read_lines(path)
        # The header has to match: without one, the first sample would silently be taken for it.
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
