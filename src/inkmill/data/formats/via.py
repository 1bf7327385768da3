"""VGG Image Annotator 2 and 3: a JSON object of files with their regions, of any shape that has an area.

What is written there is in an attribute, which everybody names otherwise: `transcription`, `text`, `label` and `value`
are known. An attribute `ignore` or `illegible` that says yes marks a region to ignore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import JsonRegions
from inkmill.data.formats.regions import Corners, box_corners, corners_of, polygons_of
from inkmill.data.types import Polygons

TEXT_ATTRIBUTES = ("transcription", "text", "label", "value")
IGNORE_ATTRIBUTES = ("ignore", "illegible", "difficult")
_ELLIPSE = 24  # corners


@register
class Via(JsonRegions):
    """Pictures by file name and size; in projects of version 2 they lie under `_via_img_metadata`."""

    name = "via_det"
    title = "VGG Image Annotator: text detection"
    example = '{"a.jpg1234": {"filename": "a.jpg", "regions": [{"shape_attributes": {"name": "rect", "x": 10, …}, …}]}}'
    specificity = 91
    file_name = "via_region_data.json"
    keys = ('"shape_attributes"', '"filename"')

    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """See JsonRegions.pictures; version 1 has regions by number, later ones a list."""
        for picture in found.get("_via_img_metadata", found).values():
            regions = picture["regions"]
            several = regions.values() if isinstance(regions, Mapping) else regions
            yield picture["filename"], polygons_of(row for row in map(self._region, several) if row is not None)

    def _region(self, region: Any) -> tuple[Corners, str, bool] | None:
        shape, attributes = region["shape_attributes"], region.get("region_attributes") or {}
        corners = _corners(shape)
        if corners is None:
            self.remarks[f"regions of VIA passed over, for a {shape['name']} has no area"] += 1
            return None
        return corners, *text_and_ignore(attributes)


def text_and_ignore(attributes: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what attributes that people named say is written in a region, and whether to ignore it."""
    named = {str(key).lower(): value for key, value in attributes.items()}
    text = next((str(named[key]) for key in TEXT_ATTRIBUTES if named.get(key)), "")
    said = [str(named[key]).lower() for key in IGNORE_ATTRIBUTES if key in named]
    return text, any(value in ("1", "true", "yes") for value in said)


def _corners(shape: Mapping[str, Any]) -> Corners | None:
    kind = shape["name"]
    if kind in ("polygon", "polyline"):
        return corners_of(list(zip(shape["all_points_x"], shape["all_points_y"], strict=True)))
    if kind == "rect":
        return box_corners(shape["x"], shape["y"], shape["width"], shape["height"])
    if kind in ("circle", "ellipse"):
        across, down = (shape["r"], shape["r"]) if kind == "circle" else (shape["rx"], shape["ry"])
        turn = np.arange(_ELLIPSE) * 2 * np.pi / _ELLIPSE
        return corners_of(
            np.stack([shape["cx"] + across * np.cos(turn), shape["cy"] + down * np.sin(turn)], 1).tolist()
        )
    return None
