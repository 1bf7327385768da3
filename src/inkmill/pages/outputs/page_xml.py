"""PAGE XML 2019-07-15 (https://github.com/PRImA-Research-Lab/PAGE-XML): for Transkribus, eScriptorium, OCR-D."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

import numpy as np

from inkmill.pages.documents import Document
from inkmill.pages.outputs.shapes import Box, baseline_of, blocks_of, boxes_of, legal, xml_bytes
from inkmill.pages.types import Line, Page, Points, Word
from inkmill.version import __version__

NAMESPACE = "http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15"


def write_page(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return PAGE XML of one page: a file of this format holds no more."""
    (page,) = pages
    root = Xml.Element(
        "PcGts",
        {
            "xmlns": NAMESPACE,
            "xmlns:xsi": "http://www.w3.org/2001/XMLSchema-instance",
            "xsi:schemaLocation": f"{NAMESPACE} {NAMESPACE}/pagecontent.xsd",
        },
    )
    metadata = Xml.SubElement(root, "Metadata")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    Xml.SubElement(metadata, "Creator").text = f"inkmill {__version__}"
    Xml.SubElement(metadata, "Created").text = now
    Xml.SubElement(metadata, "LastChange").text = now
    size = {"imageWidth": str(page.width), "imageHeight": str(page.height)}
    inside = Xml.SubElement(root, "Page", {"imageFilename": legal(page.source), **size})
    if page.rotation:
        # How far the page must be turned back clockwise, -179.999..180.
        inside.set("orientation", str({90: -90, 180: 180, 270: 90}[page.rotation]))
    blocks = blocks_of(page)
    if blocks:
        order = Xml.SubElement(Xml.SubElement(inside, "ReadingOrder"), "OrderedGroup", {"id": "order"})
        for number in range(len(blocks)):
            Xml.SubElement(order, "RegionRefIndexed", {"index": str(number), "regionRef": f"region_{number + 1}"})
    for number, block in enumerate(blocks, 1):
        _region(inside, page, block, f"region_{number}")
    return xml_bytes(root)


def _region(parent: Xml.Element, page: Page, block: Sequence[Line], key: str) -> None:
    region = Xml.SubElement(parent, "TextRegion", {"id": key})
    _coordinates(region, _corners(boxes_of(block, page)), page)
    for number, line in enumerate(block, 1):
        inside = Xml.SubElement(region, "TextLine", {"id": f"{key}_line_{number}"})
        _coordinates(inside, line.polygon, page)
        Xml.SubElement(inside, "Baseline", {"points": _points(baseline_of(line.polygon), page)})
        for index, word in enumerate(line.words, 1):
            _word(inside, page, word, f"{key}_line_{number}_word_{index}")
        _text(inside, line.text, line.confidence)
    rows: dict[int, list[str]] = {}
    for line in block:
        rows.setdefault(line.row, []).append(line.text)
    _text(region, "\n".join(" ".join(row) for row in rows.values()))


def _word(parent: Xml.Element, page: Page, word: Word, key: str) -> None:
    inside = Xml.SubElement(parent, "Word", {"id": key})
    _coordinates(inside, word.polygon, page)
    for index, (character, polygon) in enumerate(zip(word.text, word.characters, strict=True), 1):
        glyph = Xml.SubElement(inside, "Glyph", {"id": f"{key}_glyph_{index}"})
        _coordinates(glyph, polygon, page)
        _text(glyph, character)
    _text(inside, word.text, word.confidence)


def _text(parent: Xml.Element, text: str, confidence: float | None = None) -> None:
    values = {} if confidence is None else {"conf": f"{min(max(confidence, 0), 1):.4f}"}
    Xml.SubElement(Xml.SubElement(parent, "TextEquiv", values), "Unicode").text = legal(text)


def _coordinates(parent: Xml.Element, points: Points, page: Page) -> None:
    Xml.SubElement(parent, "Coords", {"points": _points(points, page)})


def _points(points: Points, page: Page) -> str:
    """Return whole numbers within the page: the schema knows no others."""
    whole = np.clip(np.rint(points), 0, [page.width, page.height]).astype(int)
    return " ".join(f"{x},{y}" for x, y in whole.tolist())


def _corners(box: Box) -> Points:
    left, top, right, bottom = box
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)
