"""Plain text, and JSON whose schema is `DocumentJson`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from inkmill.pages.documents import Document
from inkmill.pages.outputs.shapes import legal
from inkmill.pages.types import Page, Points
from inkmill.version import __version__

Point = tuple[float, float]


class _Json(BaseModel):
    model_config = ConfigDict(extra="forbid")


class WordJson(_Json):
    """A word: its polygon has four corners, from the top left of the text, clockwise."""

    text: str = Field(min_length=1)
    confidence: float = Field(ge=0, le=1)
    polygon: list[Point] = Field(min_length=4, max_length=4)
    characters: list[list[Point]] = Field(description="a polygon of four corners for each code point of the text")


class LineJson(_Json):
    """A line; lines of one block and row stand beside each other."""

    text: str = Field(min_length=1)
    confidence: float = Field(ge=0, le=1, description="mean probability of its characters")
    polygon: list[Point] = Field(min_length=4)
    block: int = Field(ge=0)
    row: int = Field(ge=0)
    words: list[WordJson] = Field(min_length=1)


class PageJson(_Json):
    """A page. Coordinates are pixels of the page as it is displayed, x to the right, y down."""

    source: str
    number: int = Field(ge=1, description="its place in the file, from 1")
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    dpi: float | None = Field(description="pixels an inch; null where unknown")
    rotation: int = Field(description="by how many degrees the text is turned clockwise: 0, 90, 180 or 270")
    skew: float = Field(description="by how many degrees the lines are turned clockwise beyond the rotation")
    lines: list[LineJson] = Field(description="in reading order")
    notes: list[str] = Field(description="what was left out, and why")


class DocumentJson(_Json):
    """What `inkmill read --format json` writes."""

    inkmill: str = Field(description="the version that wrote it")
    pages: list[PageJson]


def write_text(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return the text: a form feed between two pages, as `pdftotext` has it."""
    return ("\n\f".join(legal(page.text) for page in pages) + "\n").encode("utf-8")


def write_json(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return JSON after `DocumentJson`, UTF-8."""
    content = DocumentJson(inkmill=__version__, pages=[_page(page) for page in pages])
    return content.model_dump_json().encode("utf-8") + b"\n"


def _page(page: Page) -> PageJson:
    return PageJson(
        source=legal(page.source),
        number=page.number,
        width=page.width,
        height=page.height,
        dpi=page.dpi,
        rotation=page.rotation,
        skew=round(page.skew, 2),
        notes=[legal(note) for note in page.notes],
        lines=[
            LineJson(
                text=legal(line.text),
                confidence=round(line.confidence, 4),
                polygon=_points(line.polygon),
                block=line.block,
                row=line.row,
                words=[
                    WordJson(
                        text=legal(word.text),
                        confidence=round(word.confidence, 4),
                        polygon=_points(word.polygon),
                        characters=[_points(character) for character in word.characters],
                    )
                    for word in line.words
                ],
            )
            for line in page.lines
        ],
    )


def _points(points: Points) -> list[Point]:
    return [(x, y) for x, y in points.astype(float).round(1).tolist()]
