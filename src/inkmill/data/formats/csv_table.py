"""CSV with a header: `image_name,label` (lib_ocr, Hugging Face image folders and the like).

Quoted as RFC 4180 says. Values are text and stay text: "NA", "null" and "007" are labels, which table libraries
turn into missing values and numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import raw_lines
from inkmill.data.types import Target, Text
from inkmill.errors import LabelFileError

_IMAGE_COLUMNS = ("image_name", "image", "file_name", "filename", "path")
_LABEL_COLUMNS = ("label", "text", "transcription", "words")


@register
class CsvTable(LabelFormat):
    """A table whose header names an image column and a label column; other columns are ignored."""

    name = "csv"
    title = "CSV with the header image_name,label"
    example = 'image_name,label / a.png,"New York, NY"'
    header = "image_name,label"
    specificity = 40
    file_name = "tgt.csv"

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        columns = _columns(head[0].split(",")) if head else None
        return "the header names a column of images and one of labels" if columns else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; a quoted label may run over several lines, the entry carries the first."""
        # Strict, so that a quote that is never closed is an error and does not swallow the rest of the file.
        rows = csv.reader((line for _, line in raw_lines(path)), strict=True)
        columns, line = None, 1
        try:
            for row in rows:
                if columns is None and row:
                    columns = self._header(row, path, line)
                elif columns and row:
                    yield _entry(row, columns, path, line)
                line = rows.line_num + 1
        except csv.Error as error:
            raise LabelFileError(f"not valid CSV: {error}", path, line) from None

    def line(self, image: str, text: str) -> str:
        """See `LabelFormat.line`, quoted where it has to be."""
        line = io.StringIO()
        # With "\n" as its line end the writer quotes labels that hold one.
        csv.writer(line, lineterminator="\n").writerow((image, text))
        return line.getvalue().removesuffix("\n")

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`; a label may hold line feeds here."""
        if isinstance(target, Text) and "\n" in target.value:
            return unwritable(target.value, "\r\0", "label") or super().refuses(image, Text(""))
        return super().refuses(image, target)

    def _header(self, row: list[str], path: Path, line: int) -> tuple[int, int]:
        columns = _columns(row)
        if columns is None:
            raise LabelFileError(f"expected the header image_name,label and found {','.join(row)!r}", path, line)
        return columns


def _columns(header: list[str]) -> tuple[int, int] | None:
    # Without regard to case, quotes and blanks, as spreadsheets and scripts write headers in every way.
    names = [name.strip().strip('"').lower() for name in header]
    image = next((names.index(name) for name in _IMAGE_COLUMNS if name in names), None)
    label = next((names.index(name) for name in _LABEL_COLUMNS if name in names), None)
    return None if image is None or label is None else (image, label)


def _entry(row: list[str], columns: tuple[int, int], path: Path, line: int) -> Entry:
    image, label = columns
    if len(row) <= max(columns):
        raise LabelFileError(f"expected at least {max(columns) + 1} columns and found {len(row)}", path, line)
    if not row[image]:
        raise LabelFileError("the image name is empty", path, line)
    return Entry(row[image], Text(row[label]), line)
