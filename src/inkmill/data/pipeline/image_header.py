"""What an encoded image says about itself before anything is decoded: format, size, orientation.

Two callers need it. `decode` refuses an image that is too large before a decoder allocates for it, and turns
upright what OpenCV does not. Planning (widths for buckets, memory for a cache) needs the size of every image of a
set, and reading some tens of bytes is a thousand times cheaper than decoding.

Formats: JPEG (ITU T.81), PNG, GIF, BMP, WebP, TIFF (classic). Nothing else is accepted, because an image whose size
is not known before decoding cannot be refused in time.
"""

from __future__ import annotations

import re
import struct
from typing import Literal, NamedTuple

from inkmill.errors import ImageError, ImageFormatError

Format = Literal["JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF"]

_ORIENTATION_TAG = 0x0112
_SAMPLES_TAG = 0x0115
_STANDALONE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PLAIN_MARKERS = frozenset({0xC4, 0xDB, 0xE0})  # tables and JFIF: most of a header
_FRAME = struct.Struct(">HHB")
_LONGEST_HEADER = 8 << 20
_FILL = re.compile(rb"\xff+")


class ImageHeader(NamedTuple):
    """The facts in an image's header.

    Attributes:
        format: name of the file format.
        width: columns as stored, before any rotation.
        height: rows as stored.
        orientation: EXIF orientation, 1 to 8; 1 is upright.
        body: offset of the JPEG's first scan; 0 for other formats.
        components: of a JPEG: 1 gray, 3 colour, 4 print colours (CMYK); 0 for other formats.
    """

    format: Format
    width: int
    height: int
    orientation: int = 1
    body: int = 0
    components: int = 0

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height as a viewer shows the image."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def read_header(data: bytes) -> ImageHeader:
    """Read the header of an encoded image.

    Raises:
        ImageError: no known format, a header that is cut short, or a size of zero.
    """
    if not data:
        raise ImageError("the image is empty (0 bytes)")
    try:
        header = _parse(data)
    except (struct.error, IndexError):
        raise ImageError(f"the image's header is cut short ({len(data)} bytes)") from None
    if header.width < 1 or header.height < 1:
        raise ImageError(f"the {header.format} header gives a size of {header.width}x{header.height}")
    return header


def _parse(data: bytes) -> ImageHeader:
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _png(data)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return ImageHeader("GIF", *struct.unpack_from("<HH", data, 6))
    if data[:2] == b"BM":
        return _bmp(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data[:4] in (b"II*\0", b"MM\0*"):
        tags = _tiff_tags(data, (0x0100, 0x0101, _ORIENTATION_TAG, _SAMPLES_TAG))
        if tags.get(_SAMPLES_TAG) == 2:  # OpenCV drops the second one, and what it hides is read
            raise ImageError("a TIFF of gray with transparency is not read; save the image as PNG")
        return ImageHeader("TIFF", tags.get(0x0100, 0), tags.get(0x0101, 0), _valid(tags.get(_ORIENTATION_TAG, 1)))
    raise ImageFormatError("not an image in a known format (JPEG, PNG, GIF, BMP, WebP, TIFF)")


def tiff_directories(data: bytes, most: int) -> list[int]:
    """Return the offset of every directory of a TIFF, one a page; at most `most` + 1 of them.

    Raises:
        ImageError: no TIFF, or a chain of directories that leads out of the file or back into itself.
    """
    if data[:4] not in (b"II*\0", b"MM\0*"):
        raise ImageError("not a TIFF")
    order = "<" if data[:2] == b"II" else ">"
    found: dict[int, None] = {}
    try:
        (offset,) = struct.unpack_from(order + "I", data, 4)
        while offset and len(found) <= most:
            if offset in found:
                raise ImageError("the TIFF is damaged: its pages go round in a circle")
            found[offset] = None
            (count,) = struct.unpack_from(order + "H", data, offset)
            (offset,) = struct.unpack_from(order + "I", data, offset + 2 + 12 * count)
    except struct.error:
        raise ImageError(f"the TIFF is cut short after page {len(found)}") from None
    return list(found)


def _jpeg(data: bytes) -> ImageHeader:
    """Walk the segments up to the first scan; the frame header gives the size, APP1 the orientation."""
    width = height = components = 0
    orientation = 1
    position = 2  # after the start marker
    while position < _LONGEST_HEADER:
        if data[position] != 0xFF:
            raise ImageError(f"the JPEG's header is damaged at byte {position}")
        marker = data[position + 1]
        # 1. Fill bytes before a marker; a regular expression, since a file may consist of nothing else.
        if marker == 0xFF:
            fill = _FILL.match(data, position)
            position = fill.end() - 1 if fill else position + 1
            continue
        # 2. Markers without a segment.
        position += 2
        if marker in _STANDALONE_MARKERS:
            continue
        length = data[position] << 8 | data[position + 1]  # twice as fast as struct
        # 3. Segments: most are skipped by their length.
        if marker in _PLAIN_MARKERS:
            pass
        elif marker in _FRAME_MARKERS:
            height, width, components = _FRAME.unpack_from(data, position + 3)
        elif marker == 0xE1 and data[position + 2 : position + 8] == b"Exif\0\0":
            orientation = _exif_orientation(data[position + 8 : position + length])
        elif marker in (0xDA, 0xD9):
            return ImageHeader("JPEG", width, height, orientation, position + length, components)
        position += length if length > 2 else 2
    raise ImageError(f"the JPEG's header is longer than {_LONGEST_HEADER >> 20} MiB")


def _png(data: bytes) -> ImageHeader:
    """Read IHDR, and an eXIf chunk where there is one before the pixels."""
    width, height = struct.unpack_from(">II", data, 16)
    orientation = 1
    position = 33
    while position + 8 <= len(data):  # chunk by chunk: length, kind, data, checksum
        (length,) = struct.unpack_from(">I", data, position)
        kind = data[position + 4 : position + 8]
        if kind == b"eXIf":
            orientation = _exif_orientation(data[position + 8 : position + 8 + length])
        if kind in (b"IDAT", b"eXIf"):
            break
        position += 12 + length
    return ImageHeader("PNG", width, height, orientation)


def _bmp(data: bytes) -> ImageHeader:
    (header_size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if header_size == 12 else "<ii", data, 18)
    return ImageHeader("BMP", width, abs(height))  # a negative height means rows from the top


def _webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("WebP", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return ImageHeader("WebP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind != b"VP8X":
        raise ImageError("the WebP header is damaged: no VP8, VP8L or VP8X chunk")
    # The extended format: the canvas's size, each less one, and a flag for an EXIF chunk.
    width = int.from_bytes(data[24:27], "little") + 1
    height = int.from_bytes(data[27:30], "little") + 1
    return ImageHeader("WebP", width, height, _webp_orientation(data) if data[20] & 0x08 else 1)


def _webp_orientation(data: bytes) -> int:
    position = 12
    while position + 8 <= len(data):
        (length,) = struct.unpack_from("<I", data, position + 4)
        if data[position : position + 4] == b"EXIF":
            exif = data[position + 8 : position + 8 + length]
            return _exif_orientation(exif.removeprefix(b"Exif\0\0"))
        position += 8 + length + (length & 1)  # chunks are padded to an even length
    return 1


def _exif_orientation(tiff: bytes) -> int:
    """Return the orientation in an EXIF block; a damaged block counts as upright, as viewers treat it."""
    try:
        return _valid(_tiff_tags(tiff, (_ORIENTATION_TAG,)).get(_ORIENTATION_TAG, 1))
    except struct.error:
        return 1


def _valid(orientation: int) -> int:
    return orientation if 1 <= orientation <= 8 else 1


def _tiff_tags(data: bytes, wanted: tuple[int, ...]) -> dict[int, int]:
    """Return the SHORT and LONG values of the wanted tags of the first directory."""
    order = "<" if data[:2] == b"II" else ">"  # Intel's or Motorola's byte order
    (offset,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, offset)
    found: dict[int, int] = {}
    # Entries of 12 bytes: tag, type, count, value. Type 3 is a SHORT, type 4 a LONG.
    for entry in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind = struct.unpack_from(order + "HH", data, entry)
        if tag in wanted and kind in (3, 4):
            (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), data, entry + 8)
            found.setdefault(tag, value)  # of a repeated tag, libtiff takes the first
    return found
