"""The other text files of ICDAR's competitions, one a picture: 2013's boxes, MLT's scripts, SROIE's receipts.

icdar13_det   gt_a.txt: left, top, right, bottom, "text", with commas or blanks between
mlt_det       gt_a.txt: eight numbers, the script, the text
sroie_det     a.txt: eight numbers and the text, in the encodings of whoever typed it: what is no UTF-8 is taken for
              Latin-1, and counted
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import register
from inkmill.data.formats.lines import read_lines
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import Corners, box_corners, corners_of, polygons_of
from inkmill.data.types import Polygons
from inkmill.errors import LabelFileError
from inkmill.files import explain, read_data

SCRIPTS = frozenset({"Arabic", "Bangla", "Chinese", "Hindi", "Japanese", "Korean", "Latin", "Mixed", "None", "Symbols"})
_ICDAR13 = re.compile(r"\s*(-?\d+)[,\s]+(-?\d+)[,\s]+(-?\d+)[,\s]+(-?\d+)[,\s]+(.*)")
_MAX_BYTES = 1 << 24


class _Lines(PerPicture):
    """A region a line."""

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        rows = []
        for number, line in self.lines(file):
            try:
                rows.append((*self.region(line), False))
            except ValueError as error:
                raise LabelFileError(f"expected {self.example} ({error})", file, number) from None
        return polygons_of(rows)

    def lines(self, file: Path) -> Iterator[tuple[int, str]]:
        """Yield numbered lines."""
        return read_lines(file)

    @abstractmethod
    def region(self, line: str) -> tuple[Corners, str]:
        """Return corners and text of a line, or raise ValueError."""


@register
class Icdar13(_Lines):
    """ICDAR 2013, focused scene text: upright boxes."""

    name = "icdar13_det"
    title = "ICDAR 2013: text detection"
    example = '10, 8, 90, 30, "New York"'
    specificity = 36
    patterns = ("gt_{stem}.txt",)

    def region(self, line: str) -> tuple[Corners, str]:
        """See _Lines.region."""
        found = _ICDAR13.fullmatch(line)
        if found is None or (len(fields := line.split(",")) >= 9 and all(_is_number(one) for one in fields[:8])):
            raise ValueError("four numbers and a text")
        left, top, right, bottom = (float(found[k]) for k in range(1, 5))
        text = found[5].strip()
        quoted = len(text) >= 2 and text[0] == text[-1] == '"'
        return box_corners(left, top, right - left, bottom - top), text[1:-1] if quoted else text


@register
class Mlt(_Lines):
    """ICDAR 2017 and 2019 MLT: each region names its script."""

    name = "mlt_det"
    title = "ICDAR 2017/2019 MLT: text detection"
    example = "10,8,90,8,90,30,10,30,Latin,New York"
    specificity = 34
    patterns = ("gt_{stem}.txt", "{stem}.txt")

    def region(self, line: str) -> tuple[Corners, str]:
        """See _Lines.region."""
        *numbers, script, text = line.split(",", 9)
        if len(numbers) != 8 or script not in SCRIPTS:
            raise ValueError("eight numbers, a script and a text")
        return corners_of([float(number) for number in numbers]), text


@register
class Sroie(_Lines):
    """ICDAR 2019 SROIE: receipts; neither a byte order mark nor one encoding."""

    name = "sroie_det"
    title = "ICDAR 2019 SROIE: text detection"
    example = "10,8,90,8,90,30,10,30,NEW YORK"
    specificity = 32
    patterns = ("{stem}.txt",)

    def lines(self, file: Path) -> Iterator[tuple[int, str]]:
        """Yield numbered lines, in UTF-8 or else in Latin-1, where every byte is a character."""
        try:
            data = read_data(file, _MAX_BYTES)
        except OSError as error:
            raise LabelFileError(f"cannot be read ({explain(error)})", file) from error
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            self.remarks["files of SROIE that are no UTF-8, read as Latin-1"] += 1
            text = data.decode("latin-1")
        yield from ((n, line.strip("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip())

    def region(self, line: str) -> tuple[Corners, str]:
        """See _Lines.region."""
        *numbers, text = line.split(",", 8)
        if len(numbers) != 8:
            raise ValueError("eight numbers and a text")
        return corners_of([float(number) for number in numbers]), text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
