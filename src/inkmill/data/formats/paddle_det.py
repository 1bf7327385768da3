"""`path<TAB>[{"transcription": ..., "points": ...}]`: PaddleOCR's and PPOCRLabel's label file of text detection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from inkmill.data.formats.base import FORMATS, Entry, LabelFormat, unwritable
from inkmill.data.formats.lines import read_lines, write_lines
from inkmill.data.formats.regions import dump_regions, parse_regions, refuses_regions
from inkmill.data.types import Polygons, Target
from inkmill.errors import DataError, LabelFileError


@FORMATS.register("paddle_det")
class PaddleDet(LabelFormat):
    """One image a line: its path, one TAB, its text regions as JSON. An image may have none: `[]`."""

    name: ClassVar[str] = "paddle_det"
    title: ClassVar[str] = "PaddleOCR text detection: path, TAB, regions as JSON"
    example: ClassVar[str] = 'images/a.jpg<TAB>[{"transcription": "New York", "points": [[10, 8], [90, 8], [90, 30]]}]'
    file_name: ClassVar[str] = "Label.txt"
    names_folder: ClassVar[bool] = True

    def claims(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.claims`."""
        lists = [line.partition("\t")[2].lstrip().startswith("[") for line in head]
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

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`."""
        write_lines(path, map(self._line, entries))

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        name = "the image name is empty" if not image else unwritable(image, "\t\r\n\0")
        return name or refuses_regions(target, self.name)

    def _line(self, entry: Entry) -> str:
        refusal = self.refuses(entry.image, entry.target)
        if refusal or not isinstance(entry.target, Polygons):
            raise DataError(f"{entry.image!r} cannot be written in the format {self.name!r}: {refusal}")
        return f"{entry.image}\t{dump_regions(entry.target)}"
