"""`path<TAB>[{"transcription": ..., "points": ...}]`: PaddleOCR's and PPOCRLabel's label file of text detection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.formats.regions import dump_regions, parse_regions, refuses_regions
from inkmill.data.types import Polygons, Target
from inkmill.errors import LabelFileError


@register
class PaddleDet(LabelFormat):
    """One image a line: its path, one TAB, its text regions as JSON. An image may have none: `[]`."""

    name = "paddle_det"
    title = "PaddleOCR text detection: path, TAB, regions as JSON"
    example = 'images/a.jpg<TAB>[{"transcription": "New York", "points": [[10, 8], [90, 8], [90, 30]]}]'
    specificity = 70
    file_name = "Label.txt"
    names_folder = True

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        lists = [line.partition("\t")[2].lstrip().startswith("[") for line in head]
        # One line with points will do: images without regions have the empty list.
        regions = '"points"' in "".join(head)
        return "every line holds a TAB and a list of regions" if regions and all(lists) else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; the targets are `Polygons`."""
        for number, line in read_lines(path):
            image, tab, regions = line.partition("\t")
            if not tab or not image:
                raise LabelFileError(f"expected an image path, one TAB and regions, e.g. {self.example}", path, number)
            try:
                yield Entry(image, parse_regions(regions), number)
            except ValueError as error:
                raise LabelFileError(str(error), path, number) from None

    def text_of(self, target: Target) -> str:
        """See `LabelFormat.text_of`."""
        return dump_regions(target) if isinstance(target, Polygons) else ""

    def line(self, image: str, text: str) -> str:
        """See `LabelFormat.line`."""
        return f"{image}\t{text}"

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        name = "the image name is empty" if not image else unwritable(image, "\t\r\n\0")
        return name or refuses_regions(target, self.name)
