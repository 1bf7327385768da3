"""labelme: beside each picture a JSON file, `{imagePath, shapes: [{label, points, shape_type, description}]}`.

Polygons and rectangles are regions; lines, circles and points are none, and are counted. What is written there is the
description, or without one the label, unless that is just "text". The label `###` marks a region to ignore.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inkmill.data.formats.base import register
from inkmill.data.formats.json_regions import load_json
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import IGNORED, Corners, box_corners, corners_of, polygons_of, rows_of
from inkmill.data.types import Polygons
from inkmill.errors import LabelFileError

_LABEL = "text"


@register
class Labelme(PerPicture):
    """A folder of pictures, each with a JSON file."""

    name = "labelme_det"
    title = "labelme: text detection"
    example = 'a.json for a.jpg: {"shapes": [{"label": "text", "points": [[10, 8], …], "shape_type": "polygon"}]}'
    specificity = 60
    patterns = ("{stem}.json",)

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        try:
            shapes = [shape for shape in map(self._region, load_json(file)["shapes"]) if shape is not None]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LabelFileError(f"expected the shapes of labelme ({str(error)[:120]})", file, 1) from None
        return polygons_of(shapes)

    def _region(self, shape: Any) -> tuple[Corners, str, bool] | None:
        kind, label, points = shape.get("shape_type") or "polygon", str(shape["label"]), shape["points"]
        if kind not in ("polygon", "rectangle", "rotation"):
            self.remarks[f"labelme shapes passed over, for a {kind} is no region"] += 1
            return None
        text = shape.get("description") or ("" if label == _LABEL else label)
        if kind == "rectangle" and len(points) == 2:
            (left, top), (right, bottom) = points
            return box_corners(left, top, right - left, bottom - top), text, label in IGNORED
        return corners_of(points), text, label in IGNORED

    def dump(self, image: str, target: Polygons) -> str:
        """See PerPicture.dump."""
        shapes: list[dict[str, Any]] = [
            {
                "label": text if text in IGNORED else _LABEL,
                "points": corners,
                "group_id": None,
                "description": "" if text in IGNORED else text,
                "shape_type": "polygon",
                "flags": {},
            }
            for corners, text in rows_of(target)
        ]
        whole: dict[str, Any] = {
            "version": "5.5.0",
            "flags": {},
            "shapes": shapes,
            "imagePath": Path(image).name,
            "imageData": None,
        }
        return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"
