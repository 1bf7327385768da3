"""Searchable PDF: the page as it was, and its text, invisible, over it (ISO 32000-1).

Pictures become a new file: a JPEG's bytes go in as they are, other pictures losslessly. A PDF keeps its pages and gets
the text on top, through pikepdf (`pip install 'inkmill[pdf]'`).
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from inkmill.data.pipeline.image_header import read_header
from inkmill.errors import ConfigError, ImageError, MissingExtraError
from inkmill.pages.documents import Document
from inkmill.pages.geometry import Matrix
from inkmill.pages.outputs.pdf_text import FONT, add_font, text_layer
from inkmill.pages.types import Page
from inkmill.version import __version__

POINTS = 72.0
UNKNOWN_DPI = 150.0
"""Taken where a picture does not say: A4 is then 1240 pixels wide."""

_ORIENTATIONS = {
    1: (1, 0, 0, 1, 0, 0),
    2: (-1, 0, 0, 1, 1, 0),
    3: (-1, 0, 0, -1, 1, 1),
    4: (1, 0, 0, -1, 0, 1),
    5: (0, -1, -1, 0, 1, 1),
    6: (0, -1, 1, 0, 0, 1),
    7: (0, 1, 1, 0, 0, 0),
    8: (0, 1, -1, 0, 1, 0),
}
"""From the unit square of a stored JPEG to that of the displayed one, by EXIF orientation: a b c d e f of `cm`."""


def write_pdf(pages: Sequence[Page], document: Document | None = None) -> bytes:
    """Return a searchable PDF of a document.

    Raises:
        MissingExtraError: the document is a PDF, and pikepdf is not installed.
        ImageError: a picture cannot be read any more.
    """
    if document is None:
        raise ConfigError("a searchable PDF needs the document that was read")
    return _overlaid(pages, document) if document.is_pdf else _new(pages, document)


class PdfFile:
    """A PDF file that is written from nothing."""

    def __init__(self) -> None:
        self._objects: list[bytes] = []

    def add(self, value: bytes, stream: bytes | None = None, packed: bool = False) -> int:
        """Add an object and return its number.

        Args:
            value: what it is; of a stream its dictionary, without length and filter of what is packed here.
            stream: its content.
            packed: whether the content is packed already, and `value` names its filter.
        """
        if stream is not None:
            filtered = b""
            if not packed:
                stream, filtered = zlib.compress(stream), b"/Filter /FlateDecode "
            value = value.rstrip()[:-2] + filtered + f"/Length {len(stream)} >>\nstream\n".encode()
            value += stream + b"\nendstream"
        self._objects.append(value)
        return len(self._objects)

    def reserve(self) -> int:
        """Return the number of an object that `put` fills."""
        return self.add(b"null")

    def put(self, number: int, value: bytes) -> None:
        """Fill a reserved object."""
        self._objects[number - 1] = value

    def content(self, root: int, info: int) -> bytes:
        """Return the whole file."""
        out = io.BytesIO()
        out.write(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
        places = []
        for number, value in enumerate(self._objects, 1):
            places.append(out.tell())
            out.write(f"{number} 0 obj\n".encode() + value + b"\nendobj\n")
        start = out.tell()
        out.write(f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n".encode())
        out.write(b"".join(f"{place:010} 00000 n \n".encode() for place in places))
        trailer = f"trailer\n<< /Size {len(places) + 1} /Root {root} 0 R /Info {info} 0 R >>\n"
        out.write(f"{trailer}startxref\n{start}\n%%EOF\n".encode())
        return out.getvalue()


def _new(pages: Sequence[Page], document: Document) -> bytes:
    file = PdfFile()
    font = add_font(file.add)
    tree = file.reserve()
    kids = [_add_page(file, page, document, font, tree) for page in pages]
    references = " ".join(f"{kid} 0 R" for kid in kids)
    file.put(tree, f"<< /Type /Pages /Count {len(kids)} /Kids [{references}] >>".encode())
    root = file.add(f"<< /Type /Catalog /Pages {tree} 0 R >>".encode())
    return file.content(root, file.add(f"<< /Producer (inkmill {__version__}) >>".encode()))


def _add_page(file: PdfFile, page: Page, document: Document, font: int, tree: int) -> int:
    scale = POINTS / (page.dpi or UNKNOWN_DPI)
    width, height = page.width * scale, page.height * scale
    image, orientation = _add_image(file, document, page.number)
    numbers = " ".join(map(str, _ORIENTATIONS[orientation]))
    show = f"q {width:.3f} 0 0 {height:.3f} 0 0 cm {numbers} cm /Picture Do Q\n"
    to_pdf = np.array([[scale, 0, 0], [0, -scale, height], [0, 0, 1]])
    content = file.add(b"<< >>", show.encode() + text_layer(page, to_pdf))
    return file.add(
        f"<< /Type /Page /Parent {tree} 0 R /MediaBox [0 0 {width:.3f} {height:.3f}] /Contents {content} 0 R "
        f"/Resources << /XObject << /Picture {image} 0 R >> /Font << /{FONT} {font} 0 R >> >> >>".encode()
    )


def _add_image(file: PdfFile, document: Document, number: int) -> tuple[int, int]:
    """Add the picture of a page; return its number, and the EXIF orientation that it needs."""
    kind = b"<< /Type /XObject /Subtype /Image /BitsPerComponent 8 "
    # 1. A JPEG of gray or RGB as it is.
    if document.data is not None and document.data[:3] == b"\xff\xd8\xff":
        header = read_header(document.data)
        if header.components in (1, 3):
            space = {1: "DeviceGray", 3: "DeviceRGB"}[header.components]
            size = f"/Width {header.width} /Height {header.height} /ColorSpace /{space} /Filter /DCTDecode >>"
            return file.add(kind + size.encode(), document.data, packed=True), header.orientation
    # 2. What is left, upright and losslessly; gray where it is.
    pixels = document.page(number).pixels
    gray = bool((pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 1] == pixels[..., 2]).all())
    space = "DeviceGray" if gray else "DeviceRGB"
    size = f"/Width {pixels.shape[1]} /Height {pixels.shape[0]} /ColorSpace /{space} >>"
    stored = np.ascontiguousarray(pixels[..., 0]) if gray else pixels
    return file.add(kind + size.encode(), stored.tobytes()), 1


def _overlaid(pages: Sequence[Page], document: Document) -> bytes:
    """Return a PDF with its own pages and the text on top."""
    try:
        import pikepdf
    except ModuleNotFoundError as error:
        raise MissingExtraError("pikepdf", "pdf", "writing a searchable PDF of a PDF") from error
    assert document.data is not None
    try:
        with pikepdf.open(io.BytesIO(document.data)) as file, pikepdf.open(io.BytesIO(_font_alone())) as carrier:
            font = file.copy_foreign(carrier.Root["/Font"])
            for page in pages:
                _overlay(file.pages[page.number - 1], page, font)
            out = io.BytesIO()
            file.save(out)
            return out.getvalue()
    except pikepdf.PdfError as error:
        raise ImageError(f"{document.name}: the text cannot be laid over this PDF ({error})") from error


def _font_alone() -> bytes:
    file = PdfFile()
    font = add_font(file.add)
    tree = file.add(b"<< /Type /Pages /Count 0 /Kids [] >>")
    root = file.add(f"<< /Type /Catalog /Pages {tree} 0 R /Font {font} 0 R >>".encode())
    return file.content(root, file.add(b"<< >>"))


def _overlay(sheet: Any, page: Page, font: Any) -> None:
    """Add the text to a page of a PDF."""
    content = text_layer(page, displayed_to_user(sheet, page.width, page.height))
    # The page's own operators may leave any state behind: they are put in brackets.
    sheet.contents_add(b"q\n", prepend=True)
    sheet.contents_add(b"\nQ\nq\n" + content + b"Q\n")
    sheet.add_resource(font, "/Font", f"/{FONT}", replace_existing=True)


def displayed_to_user(sheet: Any, width: int, height: int) -> Matrix:
    """Return the matrix from the pixels of a displayed page to its user space.

    What is displayed is the CropBox within the MediaBox, turned clockwise by /Rotate (ISO 32000-1, 14.11.2).

    Args:
        sheet: a `pikepdf.Page`.
        width: pixels of the displayed page.
        height: likewise.
    """
    media, crop = ([float(side) for side in box] for box in (sheet.mediabox, sheet.cropbox))
    media, crop = ([*np.minimum(box[:2], box[2:]), *np.maximum(box[:2], box[2:])] for box in (media, crop))
    left, bottom = (max(media[side], crop[side]) for side in (0, 1))
    right, top = (min(media[side], crop[side]) for side in (2, 3))
    # 1. Pixels as shares of the displayed page, from its top left.
    shares = np.diag([1 / width, 1 / height, 1.0])
    # 2. Where its corner is, and where right and down lead.
    corner, rightwards, downwards = {
        0: ((left, top), (right - left, 0), (0, bottom - top)),
        90: ((left, bottom), (0, top - bottom), (right - left, 0)),
        180: ((right, bottom), (left - right, 0), (0, top - bottom)),
        270: ((right, top), (0, bottom - top), (left - right, 0)),
    }[_rotation(sheet.obj)]
    return np.array([*zip(rightwards, downwards, corner, strict=True), (0, 0, 1)], np.float64) @ shares


def _rotation(node: Any) -> int:
    """Return /Rotate of a page, which it may inherit, as 0, 90, 180 or 270."""
    for _ in range(64):  # a tree of pages that goes round in a circle ends here
        if "/Rotate" in node:
            return int(node["/Rotate"]) // 90 * 90 % 360
        if "/Parent" not in node:
            break
        node = node["/Parent"]
    return 0
