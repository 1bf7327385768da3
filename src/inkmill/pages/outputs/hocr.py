"""hOCR 1.2: XHTML with boxes, https://kba.github.io/hocr-spec/1.2/ - for OCRmyPDF, hocr-tools, viewers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from inkmill.pages.documents import Document
from inkmill.pages.outputs.shapes import Box, angle_of, baseline_of, blocks_of, box_of, boxes_of, legal, xml_bytes
from inkmill.pages.types import Line, Page, Word
from inkmill.version import __version__

_CAPABILITIES = "ocr_page ocr_carea ocr_par ocr_line ocrx_word ocrx_cinfo ocrp_wconf"
_DOCTYPE = (
    '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN" '
    '"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">\n'
)


def write_hocr(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return hOCR of all pages."""
    html = Xml.Element("html", {"xmlns": "http://www.w3.org/1999/xhtml", "xml:lang": "und", "lang": "und"})
    head = Xml.SubElement(html, "head")
    Xml.SubElement(head, "title").text = legal(pages[0].source) if pages else ""
    Xml.SubElement(head, "meta", {"http-equiv": "Content-Type", "content": "text/html;charset=utf-8"})
    Xml.SubElement(head, "meta", {"name": "ocr-system", "content": f"inkmill {__version__}"})
    Xml.SubElement(head, "meta", {"name": "ocr-capabilities", "content": _CAPABILITIES})
    body = Xml.SubElement(html, "body")
    for page in pages:
        _page(body, page)
    return xml_bytes(html, _DOCTYPE)


def _page(body: Xml.Element, page: Page) -> None:
    name = legal(page.source).replace("\\", "\\\\").replace('"', '\\"')
    title = [f'image "{name}"', f"bbox 0 0 {page.width} {page.height}", f"ppageno {page.number - 1}"]
    if page.dpi is not None:
        title.append(f"scan_res {round(page.dpi)} {round(page.dpi)}")
    key = f"page_{page.number}"
    parent = _part(body, "div", "ocr_page", key, title)
    count = 0
    for number, block in enumerate(blocks_of(page), 1):
        box = boxes_of(block, page)
        area = _part(parent, "div", "ocr_carea", f"block_{page.number}_{number}", [_bbox(box)])
        paragraph = _part(area, "p", "ocr_par", f"par_{page.number}_{number}", [_bbox(box)])
        for line in block:
            count += 1
            _line(paragraph, page, line, count)


def _line(parent: Xml.Element, page: Page, line: Line, number: int) -> None:
    box = box_of(line.polygon, page)
    title = [_bbox(box)]
    angle = angle_of(line.polygon)
    if abs(angle) <= 45:
        # The baseline is given from the box's lower left corner: slope, then the offset there.
        (x0, y0), (x1, y1) = baseline_of(line.polygon).tolist()
        slope = (y1 - y0) / max(x1 - x0, 1e-6)
        offset = y0 + slope * (box.left - x0) - box.bottom
        title.append(f"baseline {slope:.4f} {offset:.1f}")
    if abs(angle) >= 0.5:
        title.append(f"textangle {angle % 360:.2f}")
    title.append(f"x_size {_height(line):.1f}")
    inside = _part(parent, "span", "ocr_line", f"line_{page.number}_{number}", title)
    for index, word in enumerate(line.words, 1):
        _word(inside, page, word, f"word_{page.number}_{number}_{index}")
        inside[-1].tail = " " if index < len(line.words) else None


def _word(parent: Xml.Element, page: Page, word: Word, key: str) -> None:
    title = [_bbox(box_of(word.polygon, page)), f"x_wconf {round(100 * word.confidence)}"]
    inside = _part(parent, "span", "ocrx_word", key, title)
    for character, polygon in zip(word.text, word.characters, strict=True):
        box = box_of(polygon, page)
        part = Xml.SubElement(inside, "span", {"class": "ocrx_cinfo", "title": f"x_bboxes {_numbers(box)}"})
        part.text = legal(character)


def _part(parent: Xml.Element, tag: str, kind: str, key: str, title: Sequence[str]) -> Xml.Element:
    return Xml.SubElement(parent, tag, {"class": kind, "id": key, "title": "; ".join(title)})


def _height(line: Line) -> float:
    (x0, y0), (x1, y1) = line.polygon[0].tolist(), line.polygon[-1].tolist()
    return math.hypot(x1 - x0, y1 - y0)


def _bbox(box: Box) -> str:
    return f"bbox {_numbers(box)}"


def _numbers(box: Box) -> str:
    return " ".join(map(str, box))
