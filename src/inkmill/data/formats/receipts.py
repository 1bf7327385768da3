"""Receipts: CORD, with one JSON file a picture, and WildReceipt, with one line of JSON a picture.

CORD         json/a.json for image/a.png: {"valid_line": [{"words": [{"quad": {"x1": …, "y4": …}, "text": …}]}]}
WildReceipt  {"file_name": "a.jpg", "annotations": [{"box": [x1, y1, … x4, y4], "text": …, "label": 25}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inkmill.data.formats.base import Entry, LabelFormat, register
from inkmill.data.formats.json_regions import load_json
from inkmill.data.formats.lines import read_lines
from inkmill.data.formats.per_picture import PerPicture
from inkmill.data.formats.regions import Corners, corners_of, polygons_of
from inkmill.data.types import Polygons, Target
from inkmill.errors import LabelFileError


@register
class Cord(PerPicture):
    """A folder of receipts, each with a JSON file; words are read."""

    name = "cord_det"
    title = "CORD: text detection"
    example = 'a.json for a.png: {"valid_line": [{"words": [{"quad": {"x1": 10, "y1": 8, …}, "text": "TOTAL"}]}]}'
    specificity = 57
    patterns = ("{stem}.json",)

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        try:
            lines = load_json(file)["valid_line"]
            return polygons_of(_word(word) for line in lines for word in line["words"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LabelFileError(f"expected the lines of CORD ({str(error)[:120]})", file, 1) from None


def _word(word: Any) -> tuple[Corners, str, bool]:
    quad = word["quad"]
    return corners_of([(quad[f"x{k}"], quad[f"y{k}"]) for k in range(1, 5)]), str(word["text"]), False


@register
class WildReceipt(LabelFormat):
    """One picture a line."""

    name = "wildreceipt_det"
    title = "WildReceipt: text detection"
    example = '{"file_name": "a.jpg", "annotations": [{"box": [10, 8, 90, 8, 90, 30, 10, 30], "text": "TOTAL"}]}'
    specificity = 94
    file_name = "wildreceipt.jsonl"

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        lines = all(line.startswith("{") and '"annotations"' in line and '"file_name"' in line for line in head)
        return "every line is a JSON object with file_name and annotations" if lines and head else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        for number, line in read_lines(path):
            try:
                found = json.loads(line)
                name, regions = found["file_name"], found["annotations"]
                target = polygons_of((corners_of(one["box"]), str(one["text"]), False) for one in regions)
                if not isinstance(name, str) or not name:
                    raise ValueError("an image name is empty")
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                raise LabelFileError(f"expected a line of WildReceipt ({str(error)[:120]})", path, number) from None
            yield Entry(name, target, number)

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`: this format is read only."""
        return f"{self.name} is read, not written: paddle_det and coco_det hold the same"
