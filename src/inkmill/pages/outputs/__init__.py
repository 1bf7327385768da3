"""Pages as the files that other programs read: one writer a format, all from the same `Page`.

A writer gets the pages of one document, and the document where it needs its pixels (a searchable PDF, a picture).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inkmill.pages.documents import Document
from inkmill.pages.outputs.alto import write_alto
from inkmill.pages.outputs.data import write_json, write_text
from inkmill.pages.outputs.hocr import write_hocr
from inkmill.pages.outputs.page_xml import write_page
from inkmill.pages.outputs.pdf_writer import write_pdf
from inkmill.pages.outputs.picture import write_picture
from inkmill.pages.outputs.tsv import write_tsv
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
    "hocr": Format(".hocr", "application/xhtml+xml", write_hocr),
    "alto": Format(".alto.xml", "application/xml", write_alto),
    "page": Format(".page.xml", "application/xml", write_page, each_page=True),
    "tsv": Format(".tsv", "text/tab-separated-values; charset=utf-8", write_tsv),
    "pdf": Format(".pdf", "application/pdf", write_pdf, needs_pixels=True),
    "picture": Format(".svg", "image/svg+xml", write_picture, each_page=True, needs_pixels=True),
}
"""By the name that `--format` takes."""
