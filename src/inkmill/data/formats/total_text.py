"""Total-Text's text files: `x: [[1 2 3]], y: [[4 5 6]], ornt: [u'c'], transcriptions: [u'T']`, region after region.

A region may take several lines. The text `#` marks one to ignore. The `.mat` files of the same set hold the same.
"""

from __future__ import annotations

import re
from pathlib import Path

from inkmill.data.formats.base import register
from inkmill.data.formats.lines import read_text
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import corners_of, polygons_of
from inkmill.data.types import Polygons
from inkmill.errors import LabelFileError

_REGION = re.compile(
    r"x:\s*\[\[([-\d\s.]*)\]\],\s*y:\s*\[\[([-\d\s.]*)\]\],\s*ornt:\s*\[([^\]]*)\],\s*transcriptions:\s*\[u?(['\"])(.*?)\4\]",
    re.DOTALL,
)
_IGNORED = "#"


@register
class TotalText(PerPicture):
    """A folder of pictures, each with a file `poly_gt_img1.txt` for `img1.jpg`."""

    name = "total_text_det"
    title = "Total-Text: text detection"
    example = "x: [[10 90 90 10]], y: [[8 8 30 30]], ornt: [u'h'], transcriptions: [u'New York']"
    specificity = 52
    patterns = ("poly_gt_{stem}.txt", "gt_{stem}.txt", "{stem}.txt")

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        text, rows, end = read_text(file), [], 0
        for found in _REGION.finditer(text):
            x, y, _, _, written = found.groups()
            line = text.count("\n", 0, found.start()) + 1
            between, end = text[end : found.start()], found.end()
            if between.strip():
                raise LabelFileError(f"expected a region such as {self.example}", file, line)
            try:
                corners = corners_of(list(zip(map(float, x.split()), map(float, y.split()), strict=True)))
            except ValueError as error:
                if len(x.split()) >= 3:
                    raise LabelFileError(str(error), file, line) from None
                self.remarks["regions of Total-Text passed over, for they have less than three corners"] += 1
                continue
            rows.append((corners, written, written == _IGNORED))
        if text[end:].strip():
            line = text.count("\n", 0, end) + 1
            raise LabelFileError(f"expected a region such as {self.example}", file, line)
        return polygons_of(rows)
