"""`path<TAB>label`: PaddleOCR, OpenOCR, VietOCR and CLOVA's deep-text-recognition-benchmark.

PaddleOCR also allows a JSON list of names in the first column; all of them have the label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.types import Target, Text
from inkmill.errors import LabelFileError


@register
class Tsv(LabelFormat):
    """One image a line: its path, one TAB, its label. The label may be empty and may hold spaces."""

    name = "tsv"
    title = "PaddleOCR, VietOCR, CLOVA: path, TAB, label"
    example = "images/a.png<TAB>New York"
    specificity = 30
    file_name = "labels.tsv"
    names_folder = True

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        return "every line holds a TAB" if head and all("\t" in line for line in head) else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        for number, line in read_lines(path):
            names, tab, label = line.partition("\t")
            if not tab or not names:
                raise LabelFileError("expected an image path, one TAB and a label, e.g. " + self.example, path, number)
            # PaddleOCR's detection files are tab-separated, too: their JSON must not become a text.
            if label.startswith('[{"') and '"points"' in label:
                raise LabelFileError("this is a file of text regions (detection), not of texts", path, number)
            # A second TAB is more likely a third column than a part of the label.
            if "\t" in label:
                raise LabelFileError("expected one TAB, between path and label, and found more", path, number)
            for name in _names(names, path, number):
                yield Entry(name, Text(label), number)

    def line(self, image: str, text: str) -> str:
        """See `LabelFormat.line`."""
        return f"{image}\t{text}"

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        if image.startswith("[") and image.endswith("]"):
            return "the image name would be read as a list of names"
        more = unwritable(target.value, "\t", "label") if isinstance(target, Text) else None
        return more or super().refuses(image, target)


def _names(column: str, path: Path, number: int) -> list[str]:
    if not (column.startswith("[") and column.endswith("]")):
        return [column]
    try:
        names = json.loads(column)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise LabelFileError('expected a JSON list of image names, e.g. ["a.jpg", "b.jpg"]', path, number)
    return names
