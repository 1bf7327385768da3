"""docTR's `labels.json` of text detection: `{image: {img_dimensions, img_hash, polygons: list | {class: list}}}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import JsonRegions
from inkmill.data.formats.regions import corners_of, polygons_of
from inkmill.data.types import Polygons


@register
class DocTrDet(JsonRegions):
    """A JSON object of image names and polygons, by class or without; it has neither texts nor regions to ignore."""

    name = "doctr_det"
    title = "docTR labels.json: text detection"
    example = '{"a.png": {"img_dimensions": [480, 640], "img_hash": "…", "polygons": [[[10, 8], [90, 8], …]]}}'
    specificity = 87
    file_name = "labels.json"
    keys = ('"polygons"', '"img_dimensions"')

    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """See JsonRegions.pictures."""
        for name, picture in found.items():
            groups = picture["polygons"]
            together = [one for group in groups.values() for one in group] if isinstance(groups, dict) else groups
            yield name, polygons_of((corners_of(one), "", False) for one in together)
