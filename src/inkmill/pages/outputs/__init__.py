"""Pages as the files that other programs read: one writer a format, all from the same `Page`.

A writer gets the pages of one document, and the document where it needs its pixels (a searchable PDF, a picture).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inkmill.pages.documents import Document
from inkmill.pages.outputs.data import write_json, write_text
from inkmill.pages.types import Page

Writer = Callable[[Sequence[Page], Document | None], bytes]


class Format(NamedTuple):
    """An output format.

    Attributes:
        suffix: of its files.
        media_type: for HTTP.
        write: pages of one document, and the document, to a file's bytes.
        each_page: whether a file holds one page; a document of several gets several files.
        needs_pixels: whether it needs the document.
    """

    suffix: str
    media_type: str
    write: Writer
    each_page: bool = False
    needs_pixels: bool = False


FORMATS: dict[str, Format] = {
    "text": Format(".txt", "text/plain; charset=utf-8", write_text),
    "json": Format(".json", "application/json", write_json),
}
"""By the name that `--format` takes."""
