"""CVAT for images 1.1: `<image name><polygon points="x,y;x,y"><attribute name="text">`, in XML.

What is written there is in an attribute, see `via.TEXT_ATTRIBUTES`; a box may be turned about its centre. Only polygons
and boxes are regions; other shapes are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register
from inkmill.data.formats.regions import Corners, box_corners, corners_of, polygons_of
from inkmill.data.formats.via import text_and_ignore
from inkmill.data.formats.xml import Element, elements
from inkmill.data.types import Target
from inkmill.errors import LabelFileError

_OTHER = ("polyline", "points", "ellipse", "mask", "cuboid", "skeleton")


@register
class Cvat(LabelFormat):
    """One XML file for all pictures."""

    name = "cvat_det"
    title = "CVAT for images 1.1: text detection"
    example = (
        '<image name="a.jpg"><polygon label="text" points="10,8;90,8;90,30"><attribute name="text">Hi</attribute>…'
    )
    specificity = 93
    file_name = "annotations.xml"

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        start = "\n".join(head[:8])
        return "it is XML with <annotations>" if "<annotations" in start and "<?xml" in start else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        for image in elements(path, "image"):
            name = image.attributes.get("name")
            if not name:
                raise LabelFileError("an <image> has no name", path, image.line)
            try:
                rows = [self._region(shape) for shape in image.children if self._is_region(shape)]
            except ValueError as error:
                raise LabelFileError(f"{name}: {error}", path, image.line) from None
            yield Entry(name, polygons_of(rows), image.line)

    def _is_region(self, shape: Element) -> bool:
        if shape.tag in _OTHER:
            self.remarks[f"shapes of CVAT passed over, for a {shape.tag} is no region"] += 1
        return shape.tag in ("polygon", "box")

    def _region(self, shape: Element) -> tuple[Corners, str, bool]:
        attributes = {one.attributes.get("name", ""): one.text for one in shape.all("attribute")}
        if shape.tag == "polygon":
            pairs = [pair.split(",") for pair in shape.attributes.get("points", "").split(";")]
            return corners_of(pairs), *text_and_ignore(attributes)
        left, top = shape.number("xtl"), shape.number("ytl")
        sides = shape.number("xbr") - left, shape.number("ybr") - top
        return box_corners(left, top, *sides, shape.number("rotation", 0.0), True), *text_and_ignore(attributes)

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`: this format is read only."""
        return f"{self.name} is read, not written: paddle_det and coco_det hold the same"
