"""TSV with Tesseract's columns, for the many scripts that read those."""

from __future__ import annotations

from collections.abc import Sequence

from inkmill.pages.documents import Document
from inkmill.pages.outputs.shapes import Box, blocks_of, box_of, boxes_of, legal
from inkmill.pages.types import Page

_HEAD = [
    "level",
    "page_num",
    "block_num",
    "par_num",
    "line_num",
    "word_num",
    "left",
    "top",
    "width",
    "height",
    "conf",
    "text",
]
_PAGE, _BLOCK, _PARAGRAPH, _LINE, _WORD = range(1, 6)
_NO_CONFIDENCE = "-1"


def write_tsv(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return a row for each page, block, paragraph, line and word; confidences 0..100."""
    rows = ["\t".join(_HEAD)]
    for page in pages:
        rows += _rows(page)
    return ("\n".join(rows) + "\n").encode("utf-8")


def _rows(page: Page) -> list[str]:
    number = page.number
    found = [_row(_PAGE, (number, 0, 0, 0, 0), Box(0, 0, page.width, page.height))]
    for block, lines in enumerate(blocks_of(page), 1):
        box = boxes_of(lines, page)
        found.append(_row(_BLOCK, (number, block, 0, 0, 0), box))
        found.append(_row(_PARAGRAPH, (number, block, 1, 0, 0), box))
        for row, line in enumerate(lines, 1):
            found.append(_row(_LINE, (number, block, 1, row, 0), box_of(line.polygon, page)))
            for index, word in enumerate(line.words, 1):
                place = (number, block, 1, row, index)
                found.append(_row(_WORD, place, box_of(word.polygon, page), f"{100 * word.confidence:.2f}", word.text))
    return found


def _row(level: int, place: Sequence[int], box: Box, confidence: str = _NO_CONFIDENCE, text: str = "") -> str:
    shown = legal(text).replace("\t", " ").replace("\n", " ").replace("\r", " ")
    return "\t".join([*map(str, (level, *place, box.left, box.top, box.width, box.height)), confidence, shown])
