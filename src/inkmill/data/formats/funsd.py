"""FUNSD and XFUND: beside or in `annotations/` a JSON file a picture, `{form: [{box, text, words: [{box, text}]}]}`.

Words are read; an entry without words counts as one. Boxes are left, top, right, bottom. A region without a text is to
be ignored: something is there, and nobody knows what.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import load_json
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import Corners, box_corners, polygons_of
from inkmill.data.types import Polygons
from inkmill.errors import LabelFileError


@register
class Funsd(PerPicture):
    """A folder of scanned forms, each with a JSON file."""

    name = "funsd_det"
    title = "FUNSD: text detection"
    example = (
        'a.json for a.png: {"form": [{"box": [10, 8, 90, 30], "text": "New York", "words": [{"box": …, "text": …}]}]}'
    )
    specificity = 58
    patterns = ("{stem}.json",)

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        try:
            return polygons_of(
                _region(word) for entry in load_json(file)["form"] for word in entry.get("words") or [entry]
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LabelFileError(f"expected the form of FUNSD ({str(error)[:120]})", file, 1) from None


def _region(word: Any) -> tuple[Corners, str, bool]:
    left, top, right, bottom = word["box"]
    text = str(word["text"])
    return box_corners(left, top, right - left, bottom - top), text, not text.strip()
