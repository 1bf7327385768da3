"""COCO's `instances_*.json` as classes: an image shows a category if it has an annotation of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from inkmill.data.formats.base import Entry, LabelFormat, register
from inkmill.data.formats.lines import read_text
from inkmill.data.types import Labels, Target
from inkmill.errors import LabelFileError


@register
class CocoClasses(LabelFormat):
    """A JSON object of images, annotations and categories; crowds and boxes count alike, as presence."""

    name: ClassVar[str] = "coco"
    title: ClassVar[str] = "classification: COCO instances JSON, categories by presence"
    example: ClassVar[str] = '{"images": [...], "annotations": [...], "categories": [...]}'
    specificity: ClassVar[int] = 85
    file_name: ClassVar[str] = "instances.json"

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; the file may be one line of gigabytes, so its keys are looked for in its text."""
        if not head or not head[0].lstrip().startswith("{"):
            return None
        text = read_text(path)
        keys = ('"images"', '"annotations"', '"categories"')
        return "it holds images, annotations and categories" if all(key in text for key in keys) else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; the file is held in memory. An image without annotations shows no category."""
        try:
            found = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise LabelFileError(f"not valid JSON: {str(error)[:120]}", path, 1) from None
        images, annotations, categories = (_table(found, key, path) for key in ("images", "annotations", "categories"))
        names = {_number(one, "id", path): _text(one, "name", path) for one in categories}
        files = {_number(one, "id", path): _text(one, "file_name", path) for one in images}
        shown: dict[int, dict[str, None]] = {number: {} for number in files}
        for one in annotations:
            image, category = _number(one, "image_id", path), _number(one, "category_id", path)
            if image not in shown or category not in names:
                raise LabelFileError(
                    f"an annotation names image {image} and category {category}, and one of them is not listed", path, 1
                )
            shown[image][names[category]] = None
        for number, file in files.items():
            yield Entry(file, Labels(tuple(shown[number])), 1)

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`: this format is read only, for it needs boxes."""
        return "coco is read as classes, not written: csv_one_hot holds the same"


def _table(found: Any, key: str, path: Path) -> list[dict[str, Any]]:
    rows = found.get(key) if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise LabelFileError(f"expected a list of objects under {key!r}", path, 1)
    return rows


def _number(row: dict[str, Any], key: str, path: Path) -> int:
    value = row.get(key)
    if not isinstance(value, int):
        raise LabelFileError(f"expected a whole number under {key!r} and found {str(value)[:40]!r}", path, 1)
    return value


def _text(row: dict[str, Any], key: str, path: Path) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise LabelFileError(f"expected a text under {key!r} and found {str(value)[:40]!r}", path, 1)
    return value
