"""The invisible text of a searchable PDF: where each word stands, in a font without shapes.

The font has one empty glyph, half as wide as high; characters are UTF-16 units, all drawn with that glyph and mapped to
themselves for copying (ISO 32000-1, 9.7 and 9.10.3). So any script can be searched for and no font is needed. Each word
is stretched to its width on the page, so a selection covers what one sees.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from inkmill.pages.geometry import Matrix, apply
from inkmill.pages.outputs.shapes import BASELINE
from inkmill.pages.types import Page, Points

FONT = "InkmillText"
"""Name of the font in a page's resources."""
_WIDTH = 500
"""Of every character, in thousandths of the font size."""
_ASCENT, _DESCENT = round(1000 * (1 - BASELINE)), -round(1000 * BASELINE)
_UNITS = 1000
_NARROWEST = 0.01

AddObject = Callable[..., int]
"""Adds an object, given its dictionary and of a stream its content, and returns its number."""


def text_layer(page: Page, to_pdf: Matrix) -> bytes:
    """Return the content stream of a page's text.

    Args:
        page: what was read.
        to_pdf: from the page's pixels to PDF's user space, whose y points up.
    """
    parts = [b"BT", f"/{FONT} 1 Tf 3 Tr".encode()]
    for line in page.lines:
        parts += [_shown(word.text, apply(to_pdf, word.polygon)) for word in line.words]
    parts.append(b"ET")
    return b"\n".join(parts) + b"\n"


def _shown(text: str, quad: Points) -> bytes:
    """Return the operators that show a word stretched over a quad, and a space behind it.

    The space parts words for programs that do not look at gaps; and PDFium passes over single characters without shape.
    """
    units = text.encode("utf-16-be", "replace")
    along, up = quad[1] - quad[0], quad[0] - quad[3]
    size = max(float(np.linalg.norm(up)), 0.1)
    width = float(np.linalg.norm(along))
    stretch = max(width / (len(units) / 2 * size * _WIDTH / _UNITS), _NARROWEST)
    x, y = (quad[3] + up * BASELINE).tolist()
    cos, sin = (along / max(width, 1e-6) * size).tolist()
    matrix = f"{cos:.4f} {sin:.4f} {-sin:.4f} {cos:.4f} {x:.3f} {y:.3f} Tm"
    return f"{matrix} {100 * stretch:.3f} Tz <{units.hex()}0020> Tj".encode()


def add_font(add: AddObject) -> int:
    """Add the font and its parts to a file, and return its number."""
    program = glyphless_font()
    file = add(f"<< /Length1 {len(program)} >>".encode(), program)
    to_unicode = add(b"<< >>", _TO_UNICODE)
    glyphs = add(b"<< >>", b"\x00\x01" * 65536)  # every character is glyph 1; some viewers refuse to draw glyph 0
    descriptor = add(
        f"<< /Type /FontDescriptor /FontName /{FONT} /Flags 4 /FontBBox [0 {_DESCENT} {_WIDTH} {_ASCENT}] "
        f"/ItalicAngle 0 /Ascent {_ASCENT} /Descent {_DESCENT} /CapHeight {_ASCENT} /StemV 80 "
        f"/FontFile2 {file} 0 R >>".encode()
    )
    descendant = add(
        f"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /{FONT} /DW {_WIDTH} /CIDToGIDMap {glyphs} 0 R "
        "/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> "
        f"/FontDescriptor {descriptor} 0 R >>".encode()
    )
    return add(
        f"<< /Type /Font /Subtype /Type0 /BaseFont /{FONT} /Encoding /Identity-H "
        f"/DescendantFonts [{descendant} 0 R] /ToUnicode {to_unicode} 0 R >>".encode()
    )


_TO_UNICODE = b"""/CIDInit /ProcSet findresource begin
12 dict begin
begincmap
/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def
/CMapName /Adobe-Identity-UCS def
/CMapType 2 def
1 begincodespacerange
<0000> <FFFF>
endcodespacerange
1 beginbfrange
<0000> <FFFF> <0000>
endbfrange
endcmap
CMapName currentdict /CMap defineresource pop
end
end
"""


def glyphless_font() -> bytes:
    """Return a TrueType font of two empty glyphs (OpenType 1.9, the tables that PDF asks for)."""
    tables = {
        b"OS/2": struct.pack(
            ">HhHHH11h10s4L4s3H3h2H2L2h3H",
            *(4, _WIDTH, 400, 5, 0),
            *(0,) * 11,
            bytes(10),
            *(0, 0, 0, 0),
            b"    ",
            *(0x40, 0, 0xFFFF),
            *(_ASCENT, _DESCENT, 0),
            *(_ASCENT, -_DESCENT),
            *(0, 0),
            *(_ASCENT // 2, _ASCENT),
            *(0, 0x20, 1),
        ),
        b"cmap": struct.pack(">HHHHLHHHHHHHHHHHH", 0, 1, 3, 1, 12, 4, 24, 0, 2, 2, 0, 0, 0xFFFF, 0, 0xFFFF, 1, 0),
        b"glyf": b"\0",
        b"head": struct.pack(
            ">4HLLHHqq4hHHhhh",
            *(1, 0, 1, 0, 0, 0x5F0F3CF5, 0, _UNITS, 0, 0),
            *(0, _DESCENT, _WIDTH, _ASCENT, 0, 8, 2, 0, 0),
        ),
        b"hhea": struct.pack(">HHhhhHhhhhhh8xhH", 1, 0, _ASCENT, _DESCENT, 0, _WIDTH, 0, 0, 0, 1, 0, 0, 0, 2),
        b"hmtx": struct.pack(">HhHh", _WIDTH, 0, _WIDTH, 0),
        b"loca": struct.pack(">3H", 0, 0, 0),
        b"maxp": struct.pack(">HH14H", 1, 0, 2, *(0,) * 4, 1, *(0,) * 8),
        b"name": struct.pack(">HHH", 0, 0, 6),
        b"post": struct.pack(">HHHHhh5L", 3, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0),
    }
    offset = 12 + 16 * len(tables)
    directory, body = [], b""
    for tag, content in sorted(tables.items()):
        padded = content + bytes(-len(content) % 4)
        total = sum(struct.unpack(f">{len(padded) // 4}L", padded)) & 0xFFFFFFFF
        directory.append(struct.pack(">4sLLL", tag, total, offset + len(body), len(content)))
        body += padded
    head = struct.pack(">LHHHH", 0x00010000, len(tables), 128, 3, 16 * len(tables) - 128)
    return head + b"".join(directory) + body
