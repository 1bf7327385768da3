"""COCO-Text version 2 and TextOCR: `{imgs, anns, imgToAnns}`, in JSON.

COCO-Text says by `legibility` what cannot be read, TextOCR by the text `.`; both are to be ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import JsonRegions
from inkmill.data.formats.regions import Corners, box_corners, corners_of, polygons_of
from inkmill.data.types import Polygons

_UNREADABLE = "."


@register
class CocoText(JsonRegions):
    """Images and annotations by their ids; corners are in `mask`, `points` or `polygon`, flat, else in `bbox`."""

    name = "coco_text_det"
    title = "COCO-Text, TextOCR: text detection"
    example = (
        '{"imgs": {"1": {"file_name": "a.jpg"}}, "anns": {"7": {"image_id": 1, "mask": [10, 8, …], …}}, "imgToAnns": …}'
    )
    specificity = 90
    file_name = "cocotext.json"
    keys = ('"imgs"', '"anns"', '"imgToAnns"')

    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """See JsonRegions.pictures; an image without annotations may be missing in imgToAnns."""
        annotations = found["anns"]
        for number, image in found["imgs"].items():
            mine = found["imgToAnns"].get(number, ())
            yield image["file_name"], polygons_of(self._region(annotations[str(one)]) for one in mine)

    def _region(self, one: Any) -> tuple[Corners, str, bool]:
        text = one.get("utf8_string") or ""
        flat = next((one[key] for key in ("mask", "points", "polygon") if one.get(key)), None)
        ignore = one.get("legibility") == "illegible" or text == _UNREADABLE
        return box_corners(*one["bbox"]) if flat is None else corners_of(flat), text, ignore
