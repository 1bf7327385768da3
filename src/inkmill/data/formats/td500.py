"""MSRA-TD500 and HUST-TR400: beside `IMG_1.JPG` a file `IMG_1.gt` of lines `index difficult x y w h angle`.

The box is turned about its centre by an angle in radians; difficult regions are to be ignored. There are no texts.
"""

from __future__ import annotations

import math
from pathlib import Path

from inkmill.data.formats.base import register
from inkmill.data.formats.lines import read_lines
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import box_corners, polygons_of
from inkmill.data.types import Polygons
from inkmill.errors import LabelFileError

_FIELDS = 7


@register
class Td500(PerPicture):
    """A folder of pictures, each with a `.gt` file."""

    name = "td500_det"
    title = "MSRA-TD500: text detection"
    example = "0 0 10 8 80 22 0.1 (index, difficult, x, y, width, height, angle)"
    specificity = 50
    patterns = ("{stem}.gt",)

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        rows = []
        for number, line in read_lines(file):
            fields = line.split()
            try:
                if len(fields) != _FIELDS:
                    raise ValueError(f"it has {len(fields)} fields")
                x, y, width, height, angle = map(float, fields[2:])
                rows.append((box_corners(x, y, width, height, math.degrees(angle), True), "", fields[1] == "1"))
            except ValueError as error:
                raise LabelFileError(f"expected seven fields, {self.example} ({error})", file, number) from None
        return polygons_of(rows)
