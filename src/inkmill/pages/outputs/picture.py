"""The page with its boxes, and beside it the text where it was found: to see at a glance what was read and what not.

The text is an SVG beside the picture, so any script is drawn with the fonts of whoever looks at it, none is fetched,
and it can be searched and copied. The file needs nothing else.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

import cv2

from inkmill.errors import ConfigError
from inkmill.pages.documents import Document
from inkmill.pages.outputs.shapes import BASELINE, angle_of, legal, xml_bytes
from inkmill.pages.types import Page, Points, Word

_JPEG_QUALITY = 85
_SURE, _DOUBTFUL = "#1a7f37", "#bc4c00"
"""Colours of boxes: read with a confidence of at least 0.9, and less."""
_LEAST = 0.9


def write_picture(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return an SVG of one page: the picture with boxes on the left, its text in place on the right."""
    if document is None:
        raise ConfigError("a picture with boxes needs the document that was read")
    (page,) = pages
    size = {"width": str(2 * page.width), "height": str(page.height), "viewBox": f"0 0 {2 * page.width} {page.height}"}
    root = Xml.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    Xml.SubElement(root, "title").text = legal(f"{page.source}, page {page.number}")
    white = {"width": str(2 * page.width), "height": str(page.height), "fill": "white"}
    Xml.SubElement(root, "rect", white)
    pixels = cv2.cvtColor(document.page(page.number).pixels, cv2.COLOR_RGB2BGR)
    _, encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    link = "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode()
    Xml.SubElement(root, "image", {"width": str(page.width), "height": str(page.height), "href": link})
    right = Xml.SubElement(root, "g", {"transform": f"translate({page.width} 0)", "font-family": "sans-serif"})
    for line in page.lines:
        colour = _SURE if line.confidence >= _LEAST else _DOUBTFUL
        for parent in (root, right):
            outline = {"points": _points(line.polygon), "fill": "none", "stroke": colour, "stroke-width": "1.5"}
            polygon = Xml.SubElement(parent, "polygon", outline)
            Xml.SubElement(polygon, "title").text = legal(f"{line.text} ({line.confidence:.0%})")
        for word in line.words:
            _word(right, word)
    return xml_bytes(root)


def _word(parent: Xml.Element, word: Word) -> None:
    """Write a word into its box."""
    polygon = word.polygon
    x, y = (polygon[3] + (polygon[0] - polygon[3]) * BASELINE).tolist()
    height = math.dist(polygon[0].tolist(), polygon[3].tolist())
    width = math.dist(polygon[0].tolist(), polygon[1].tolist())
    values = {
        "transform": f"translate({x:.1f} {y:.1f}) rotate({-angle_of(polygon):.2f})",
        "font-size": f"{0.75 * height:.1f}",
        "textLength": f"{max(width, 1):.1f}",
        "lengthAdjust": "spacingAndGlyphs",
    }
    Xml.SubElement(parent, "text", values).text = legal(word.text)


def _points(points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points.tolist())
