"""ALTO 4.4 (https://www.loc.gov/standards/alto/): what libraries keep beside their scans."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from inkmill.pages.documents import Document
from inkmill.pages.outputs.shapes import Box, angle_of, baseline_of, blocks_of, box_of, boxes_of, legal, xml_bytes
from inkmill.pages.types import Line, Page, Points, Word
from inkmill.version import __version__

NAMESPACE = "http://www.loc.gov/standards/alto/ns-v4#"
SCHEMA = "http://www.loc.gov/standards/alto/v4/alto-4-4.xsd"


def write_alto(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return ALTO of all pages, in pixels."""
    root = Xml.Element(
        "alto",
        {
            "xmlns": NAMESPACE,
            "xmlns:xsi": "http://www.w3.org/2001/XMLSchema-instance",
            "xsi:schemaLocation": f"{NAMESPACE} {SCHEMA}",
        },
    )
    description = Xml.SubElement(root, "Description")
    Xml.SubElement(description, "MeasurementUnit").text = "pixel"
    if pages:
        source = Xml.SubElement(description, "sourceImageInformation")
        Xml.SubElement(source, "fileName").text = legal(pages[0].source)
    processing = Xml.SubElement(description, "Processing", {"ID": "processing_1"})
    software = Xml.SubElement(processing, "processingSoftware")
    Xml.SubElement(software, "softwareName").text = "inkmill"
    Xml.SubElement(software, "softwareVersion").text = __version__
    layout = Xml.SubElement(root, "Layout")
    for page in pages:
        _page(layout, page)
    return xml_bytes(root)


def _page(layout: Xml.Element, page: Page) -> None:
    key = f"page_{page.number}"
    values = {"ID": key, "PHYSICAL_IMG_NR": str(page.number), "HEIGHT": str(page.height), "WIDTH": str(page.width)}
    space = Xml.SubElement(
        Xml.SubElement(layout, "Page", values),
        "PrintSpace",
        _place(Box(0, 0, page.width, page.height)),
    )
    count = 0
    for number, block in enumerate(blocks_of(page), 1):
        values = {"ID": f"block_{page.number}_{number}", **_place(boxes_of(block, page))}
        if page.rotation:
            values["ROTATION"] = str(360 - page.rotation)  # counter-clockwise
        inside = Xml.SubElement(space, "TextBlock", values)
        for line in block:
            count += 1
            _line(inside, page, line, f"{page.number}_{count}")


def _line(parent: Xml.Element, page: Page, line: Line, key: str) -> None:
    values = {"ID": f"line_{key}", **_place(box_of(line.polygon, page)), "BASELINE": _points(baseline_of(line.polygon))}
    inside = Xml.SubElement(parent, "TextLine", values)
    if _is_turned(line.polygon):
        _shape(inside, line.polygon)
    before: Word | None = None
    for index, word in enumerate(line.words, 1):
        if before is not None:
            _space(inside, page, before, word)
        box = box_of(word.polygon, page)
        content = {"CONTENT": legal(word.text), **_place(box), "WC": f"{word.confidence:.4f}"}
        string = Xml.SubElement(inside, "String", {"ID": f"word_{key}_{index}", **content})
        if _is_turned(word.polygon):
            _shape(string, word.polygon)
        before = word


def _space(parent: Xml.Element, page: Page, before: Word, after: Word) -> None:
    """Write the space between two words, from the end of the one to the begin of the other."""
    between = box_of(_between(before, after), page)
    place = {"HPOS": str(between.left), "VPOS": str(between.top), "WIDTH": str(between.width)}
    Xml.SubElement(parent, "SP", place)


def _between(before: Word, after: Word) -> Points:
    points: Points = before.polygon.copy()
    points[[0, 3]], points[[1, 2]] = before.polygon[[1, 2]], after.polygon[[0, 3]]
    return points


def _shape(parent: Xml.Element, polygon: Points) -> None:
    shape = Xml.SubElement(parent, "Shape")
    Xml.SubElement(shape, "Polygon", {"POINTS": _points(polygon)})


def _is_turned(polygon: Points) -> bool:
    return abs(angle_of(polygon)) >= 0.5


def _place(box: Box) -> dict[str, str]:
    return {"HPOS": str(box.left), "VPOS": str(box.top), "WIDTH": str(box.width), "HEIGHT": str(box.height)}


def _points(points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points.tolist())
