"""MMOCR 1.x: `{metainfo, data_list: [{img_path, instances: [{polygon | bbox, ignore, text}]}]}`, in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import JsonRegions
from inkmill.data.formats.regions import Corners, box_corners, corners_of, polygons_of
from inkmill.data.types import Polygons


@register
class MmOcr(JsonRegions):
    """Pictures in a list, each with its instances; a box is left, top, right, bottom."""

    name = "mmocr_det"
    title = "MMOCR 1.x: text detection"
    example = '{"data_list": [{"img_path": "a.jpg", "instances": [{"polygon": [10, 8, …], "ignore": false}]}]}'
    specificity = 89
    file_name = "textdet_train.json"
    keys = ('"data_list"', '"img_path"', '"instances"')

    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """See JsonRegions.pictures."""
        for picture in found["data_list"]:
            yield picture["img_path"], polygons_of(map(_region, picture["instances"]))


def _region(one: Any) -> tuple[Corners, str, bool]:
    text, ignore = one.get("text") or "", bool(one.get("ignore"))
    if one.get("polygon"):
        return corners_of(one["polygon"]), text, ignore
    left, top, right, bottom = one["bbox"]
    return box_corners(left, top, right - left, bottom - top), text, ignore
