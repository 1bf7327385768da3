"""ArT, LSVT and ReCTS, the ICDAR 2019 competitions of curved, street-view and signboard text, in JSON.

ArT and LSVT have one file for all pictures, `{"gt_1": [{points, transcription, illegibility}, …]}`, whose pictures are
`gt_1.jpg`; ReCTS has one file a picture, `{"lines": [{points, transcription, ignore}, …]}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import JsonRegions, load_json
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import Corners, corners_of, polygons_of
from inkmill.data.types import Polygons
from inkmill.errors import LabelFileError


@register
class Art(JsonRegions):
    """Regions by the name of the picture without its suffix."""

    name = "art_det"
    title = "ICDAR 2019 ArT, LSVT: text detection"
    example = '{"gt_1": [{"transcription": "New York", "points": [[10, 8], …], "illegibility": false}]}'
    specificity = 88
    file_name = "train_labels.json"
    keys = ('"points"', '"transcription"', '"illegibility"')

    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """See JsonRegions.pictures."""
        for name, regions in found.items():
            yield name if Path(name).suffix else f"{name}.jpg", polygons_of(map(_region, regions))


@register
class Rects(PerPicture):
    """A JSON file a picture, with lines and characters; the lines are read."""

    name = "rects_det"
    title = "ICDAR 2019 ReCTS: text detection"
    example = (
        'a.json for a.jpg: {"lines": [{"points": [10, 8, …], "transcription": "New York", "ignore": 0}], "chars": …}'
    )
    specificity = 56
    patterns = ("{stem}.json",)

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        try:
            return polygons_of(map(_region, load_json(file)["lines"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LabelFileError(f"expected the lines of ReCTS ({str(error)[:120]})", file, 1) from None


def _region(one: Any) -> tuple[Corners, str, bool]:
    return corners_of(one["points"]), str(one["transcription"]), bool(one.get("illegibility") or one.get("ignore"))
