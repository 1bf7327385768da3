"""SCUT-CTW1500, curved text of 14 corners: XML files for training, text files for testing, and the first release's.

0001.xml   <image file="0001.jpg"><box …><label>New York</label><segs>x1,y1, … x14,y14</segs></box></image>
0001.txt   x1,y1, … x14,y14,####New York
0001.txt   left,top,right,bottom, and 14 corners as seen from left and top; without texts
"""

from __future__ import annotations

from pathlib import Path

from inkmill.data.formats.base import register
from inkmill.data.formats.lines import read_lines
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import Corners, corners_of, polygons_of
from inkmill.data.formats.xml import elements
from inkmill.data.types import Polygons
from inkmill.errors import LabelFileError

_NUMBERS = 28
_TEXT = "####"


@register
class Ctw1500(PerPicture):
    """A folder of pictures, each with an XML or text file."""

    name = "ctw1500_det"
    title = "SCUT-CTW1500: text detection"
    example = "10,8, … 90,30,####New York (28 numbers)"
    specificity = 54
    patterns = ("{stem}.txt", "{stem}.xml", "gt_{stem}.txt", "000{stem}.txt")

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        if file.suffix == ".xml":
            return _of_xml(file)
        rows = []
        for number, line in read_lines(file):
            try:
                rows.append(_of_line(line))
            except ValueError as error:
                raise LabelFileError(f"expected 28 numbers and {_TEXT}TEXT ({error})", file, number) from None
        return polygons_of(rows)


def _of_xml(file: Path) -> Polygons:
    rows = []
    for picture in elements(file, "image"):
        for box in picture.all("box"):
            try:
                corners = corners_of([float(number) for number in box.all("segs")[0].text.split(",")])
            except (ValueError, IndexError) as error:
                raise LabelFileError(f"expected <segs> of 28 numbers in <box> ({error})", file, box.line) from None
            rows.append((corners, "".join(label.text for label in box.all("label")), False))
    return polygons_of(rows)


def _of_line(line: str) -> tuple[Corners, str, bool]:
    numbers, mark, text = line.partition(f",{_TEXT}")
    values = [float(number) for number in numbers.split(",")]
    if not mark and len(values) == _NUMBERS + 4:
        left, top = values[:2]
        values = [value + (top if place % 2 else left) for place, value in enumerate(values[4:])]
    if len(values) != _NUMBERS:
        raise ValueError(f"it has {len(values)} numbers")
    return corners_of(values), text, False
