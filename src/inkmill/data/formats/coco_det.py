"""COCO's `instances_*.json` as text regions: the polygons of its annotations, with their texts where they have some."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cv2

from inkmill.data.formats.base import Entry, register
from inkmill.data.formats.json_regions import JsonRegions, text_of
from inkmill.data.formats.lines import write_lines
from inkmill.data.formats.regions import IGNORED, box_corners, corners_of, polygons_of, refuses_regions, rows_of
from inkmill.data.types import Polygons, Target
from inkmill.errors import DataError

TEXT_KEYS = ("text", "utf8_string", "transcription", "rec")
_TEXTUAL = re.compile(r'"name"\s*:\s*"(text|words?|(text[ _-]?)?lines?|paragraph)"', re.IGNORECASE)


@register
class CocoDet(JsonRegions):
    """A JSON object of images and annotations; `iscrowd` marks a region to ignore."""

    name = "coco_det"
    title = "COCO instances: text detection"
    example = (
        '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "segmentation": [[10, 8, …]]}]}'
    )
    specificity = 86
    file_name = "instances.json"
    keys = ('"images"', '"annotations"', '"image_id"')

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; sets of photographs have the same keys, so texts or a category text must occur."""
        reason = super().detect(path, head)
        text = text_of(path) if reason else ""
        if not any(f'"{key}"' in text for key in TEXT_KEYS) and not _TEXTUAL.search(text):
            return None
        return f"{reason} and text"

    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """See JsonRegions.pictures."""
        rows: dict[Any, list[Any]] = {one["id"]: [] for one in found["images"]}
        for one in found["annotations"]:
            if one["image_id"] not in rows:
                raise ValueError(f"an annotation names image {one['image_id']}, which is not listed")
            rows[one["image_id"]].append(one)
        for image in found["images"]:
            yield image["file_name"], polygons_of(map(self._region, rows[image["id"]]))

    def _region(self, one: Any) -> tuple[Any, str, bool]:
        text = next((one[key] for key in TEXT_KEYS if isinstance(one.get(key), str)), "")
        parts = one.get("segmentation")
        if isinstance(parts, list) and parts:
            several = [corners_of(part) for part in (parts if isinstance(parts[0], list) else [parts])]
            if len(several) > 1:
                self.remarks["regions of several polygons, of which the largest is kept"] += 1
            return max(several, key=cv2.contourArea), text, bool(one.get("iscrowd") or one.get("ignore"))
        if parts:
            self.remarks["regions drawn as a mask, read as their box"] += 1
        return box_corners(*one["bbox"]), text, bool(one.get("iscrowd") or one.get("ignore"))

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; sizes of pictures are left out, for a label knows none."""
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, entry in enumerate(entries, 1):
            refusal = self.refuses(entry.image, entry.target)
            if refusal or not isinstance(entry.target, Polygons):
                raise DataError(f"{entry.image!r} cannot be written in the format {self.name!r}: {refusal}")
            images.append({"id": number, "file_name": entry.image})
            for corners, text in rows_of(entry.target):
                points = corners_of(corners)
                (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
                annotation = {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 1,
                    "segmentation": [[number for corner in corners for number in corner]],
                    "bbox": [left, top, right - left, bottom - top],
                    "area": float(cv2.contourArea(points)),
                    "iscrowd": int(text == IGNORED[0]),
                    "text": "" if text == IGNORED[0] else text,
                }
                annotations.append(annotation)
        whole = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "text"}]}
        write_lines(path, [json.dumps(whole, ensure_ascii=False)])

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        return "the image name is empty" if not image else refuses_regions(target, self.name)
