"""From what a user gives - a path, bytes, an array - to pages upright as a viewer shows them.

One decoder (`inkmill.data.pipeline.decode`) for every kind of input: a phone's photograph is upright whether it comes
as a file, as bytes, or as a PIL image. A limit on pages or pixels is an error, never a silent cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from inkmill.data.pipeline.decode import MAX_PIXELS, decode
from inkmill.data.pipeline.image_header import read_header, tiff_directories
from inkmill.errors import DataError, ImageError, PageLimitError
from inkmill.files import explain
from inkmill.pages.pdf import DPI, PdfProcess
from inkmill.pages.types import PageImage
from inkmill.runtime.reader import picture_pixels

MAX_PAGES = 10_000
"""Of one document."""
MAX_BYTES = 2 << 30
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".pdf")
"""What is looked for in folders."""
_TIFF = (b"II*\0", b"MM\0*")


class Document:
    """The pages of one source; close it, or use it with `with`. One thread at a time.

    Args:
        source: a path, encoded bytes, a uint8 array (HW gray, HWC RGB or RGBA), or a PIL image.
        name: what to call it in pages and errors; by default its path, or "image".
        dpi: at which a PDF's pages are rendered.
        max_pages: refuse a document with more.
        max_pixels: refuse larger pages.
        password: of an encrypted PDF.

    Attributes:
        name: the same.
        count: pages.
        data: the encoded file; None for arrays and PIL images.
        is_pdf: whether it is one.

    Raises:
        DataError: it cannot be read, is no picture or PDF, or has too many pages; names it.
        MissingExtraError: it is a PDF, and pypdfium2 is not installed.
    """

    def __init__(
        self,
        source: Any,
        name: str | None = None,
        *,
        dpi: float = DPI,
        max_pages: int = MAX_PAGES,
        max_pixels: int = MAX_PIXELS,
        password: str | None = None,
    ) -> None:
        self.name = name or (str(source) if isinstance(source, str | Path) else "image")
        self._dpi, self._max_pixels = dpi, max_pixels
        self._picture: Any = None
        self._pdf: PdfProcess | None = None
        self._directories: list[int] = []
        self.count = 1
        if isinstance(source, str | Path):
            source = _content(Path(source))
        self.data = bytes(source) if isinstance(source, bytes | bytearray | memoryview) else None
        # What it is, the bytes say; a name may lie.
        self.is_pdf = self.data is not None and b"%PDF-" in self.data[:1024]
        if self.data is None:
            self._picture = source
        elif self.is_pdf:
            self._pdf = PdfProcess(self.data, self.name, password)
            self.count = self._pdf.count
        elif self.data[:4] in _TIFF:
            try:
                self._directories = tiff_directories(self.data, max_pages)
            except ImageError as error:
                raise type(error)(f"{self.name}: {error}") from error
            self.count = len(self._directories)
        else:
            try:
                read_header(self.data)
            except ImageError as error:
                said = str(error).replace("JPEG, PNG, GIF, BMP, WebP, TIFF", "JPEG, PNG, GIF, BMP, WebP, TIFF, PDF")
                raise type(error)(f"{self.name}: {said}") from error
        if not 0 < self.count <= max_pages:
            self.close()
            found = f"more than {max_pages:,}" if self._directories else f"{self.count:,}"
            raise PageLimitError(f"{self.name}: {found} pages, and 1 to {max_pages:,} are allowed")

    def page(self, number: int) -> PageImage:
        """Return a page.

        Args:
            number: from 1.

        Raises:
            DataError: this page cannot be read; others may.
        """
        if not 1 <= number <= self.count:
            raise DataError(f"{self.name}: no page {number}; it has {self.count}")
        if self._pdf is not None:
            pixels = self._pdf.render(number, self._dpi, self._max_pixels)
            return PageImage(self.name, number, pixels, self._dpi)
        if self.data is None:
            return PageImage(self.name, number, picture_pixels(self._picture, 3, self.name))
        where = f"{self.name}: page {number}" if self.count > 1 else self.name
        data = self.encoded(number)
        try:
            return PageImage(self.name, number, decode(data, 3, self._max_pixels), resolution(data))
        except ImageError as error:
            raise type(error)(f"{where}: {error}") from error

    def encoded(self, number: int) -> bytes:
        """Return the picture file of a page; of a TIFF with several pages, one that begins with that page."""
        assert self.data is not None
        if not self._directories:
            return self.data
        # A TIFF begins with the offset of its first directory.
        order = "<I" if self.data[:2] == b"II" else ">I"
        return b"".join((self.data[:4], struct.pack(order, self._directories[number - 1]), self.data[8:]))

    def pages(self) -> Iterator[PageImage]:
        """Yield every page.

        Raises:
            DataError: one cannot be read.
        """
        for number in range(1, self.count + 1):
            yield self.page(number)

    def close(self) -> None:
        """End what was started for it."""
        if self._pdf is not None:
            self._pdf.close()

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_pages(source: Any, name: str | None = None, **limits: Any) -> Iterator[PageImage]:
    """Yield the pages of one source; arguments and errors as for `Document`."""
    with Document(source, name, **limits) as document:
        yield from document.pages()


def resolution(data: bytes) -> float | None:
    """Return the pixels an inch that a picture file gives; None where it does not, or an unlikely number."""
    try:
        if data[:3] == b"\xff\xd8\xff":
            found = _jfif_dpi(data)
        elif data[:8] == b"\x89PNG\r\n\x1a\n":
            found = _png_dpi(data)
        elif data[:4] in _TIFF:
            found = _tiff_dpi(data)
        else:
            return None
    except struct.error:
        return None
    return found if found is not None and 30 <= found <= 2400 else None


def _jfif_dpi(data: bytes) -> float | None:
    if data[6:11] != b"JFIF\0":
        return None
    unit, density = struct.unpack_from(">BH", data, 13)
    return {1: float(density), 2: density * 2.54}.get(unit)


def _png_dpi(data: bytes) -> float | None:
    start = data.find(b"pHYs", 0, 4096)
    if start < 0:
        return None
    a_metre, _, unit = struct.unpack_from(">IIB", data, start + 4)
    return round(a_metre * 0.0254, 1) if unit == 1 else None


def _tiff_dpi(data: bytes) -> float | None:
    order = "<" if data[:2] == b"II" else ">"
    (offset,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, offset)
    found, unit = None, 2  # inches, unless it says otherwise
    for entry in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind = struct.unpack_from(order + "HH", data, entry)
        if (tag, kind) == (0x011A, 5):
            (at,) = struct.unpack_from(order + "I", data, entry + 8)
            above, below = struct.unpack_from(order + "II", data, at)
            found = above / below if below else None
        if (tag, kind) == (0x0128, 3):
            (unit,) = struct.unpack_from(order + "H", data, entry + 8)
    return {2: found, 3: found * 2.54 if found is not None else None}.get(unit)


def _content(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise DataError(f"{path}: a folder, where a file is expected")
        if path.stat().st_size > MAX_BYTES:
            raise PageLimitError(f"{path}: {path.stat().st_size:,} bytes, and at most {MAX_BYTES:,} are allowed")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or explain(error)})") from error
    except ValueError as error:
        raise DataError(f"{str(path)!r}: no name of a file ({error})") from error


def is_one(sources: Any) -> bool:
    """Return whether something is one source, and not a list of them."""
    known = (str, Path, bytes, bytearray, memoryview, np.ndarray, PageImage)
    return isinstance(sources, known) or hasattr(sources, "mode") or not hasattr(sources, "__iter__")
