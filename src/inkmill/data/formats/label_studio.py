"""Label Studio's JSON export: tasks with annotations, whose places are percentages of the picture's sides.

A text area belongs to the shape of its `id`. Of several annotations of a picture the first that was not cancelled
counts. The picture is the last part of the path under `ocr` or `image`; of local files what follows `?d=`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import JsonRegions
from inkmill.data.formats.regions import Corners, box_corners, corners_of, polygons_of
from inkmill.data.types import Polygons

_PICTURES = ("ocr", "image", "img")


@register
class LabelStudio(JsonRegions):
    """A list of tasks; rectangles are turned about their upper left corner."""

    name = "label_studio_det"
    title = "Label Studio: text detection"
    example = '[{"data": {"ocr": "a.jpg"}, "annotations": [{"result": [{"type": "rectangle", "value": {…}}]}]}]'
    specificity = 92
    file_name = "project.json"
    keys = ('"annotations"', '"result"', '"data"')

    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """See JsonRegions.pictures."""
        for task in found:
            several = [one for one in task["annotations"] if not one.get("was_cancelled")]
            if len(several) > 1:
                self.remarks["pictures with several annotations, of which the first is read"] += 1
            result = several[0]["result"] if several else []
            yield _name(task["data"]), polygons_of(_regions(result))


def _regions(result: list[Mapping[str, Any]]) -> Iterator[tuple[Corners, str, bool]]:
    texts: dict[str, str] = {}
    for one in result:
        text = one["value"].get("text")
        if text:
            texts[one["id"]] = " ".join(map(str, text)) if isinstance(text, list) else str(text)
    for one in result:
        value, width, height = one["value"], one.get("original_width", 0), one.get("original_height", 0)
        if one["type"] in ("rectangle", "rectanglelabels"):
            x, y, across, down = (value[key] for key in ("x", "y", "width", "height"))
            sides = x * width / 100, y * height / 100, across * width / 100, down * height / 100
            yield box_corners(*sides, value.get("rotation", 0)), texts.get(one["id"], ""), False
        elif one["type"] in ("polygon", "polygonlabels"):
            corners = [(x * width / 100, y * height / 100) for x, y in value["points"]]
            yield corners_of(corners), texts.get(one["id"], ""), False


def _name(data: Mapping[str, Any]) -> str:
    written = next(str(data[key]) for key in (*_PICTURES, *data) if key in data)
    parts = urlsplit(written)
    local = parse_qs(parts.query).get("d")
    return local[0] if local else PurePosixPath(unquote(parts.path)).name
