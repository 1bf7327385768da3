"""Searchable PDFs, read back by other programs: poppler's pdftotext where it is installed, and PDFium."""

from __future__ import annotations

import io
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from PIL import Image

from inkmill.pages.documents import Document
from inkmill.pages.outputs import FORMATS
from inkmill.pages.outputs.pdf_text import glyphless_font
from inkmill.pages.types import Line, Page, Word

WORD = re.compile(r'<word xMin="([\d.]+)" yMin="([\d.]+)" xMax="([\d.]+)" yMax="([\d.]+)">([^<]*)</word>')
POPPLER = shutil.which("pdftotext") is None


def saved(image, kind, **options):
    file = io.BytesIO()
    image.copy().save(file, kind, **options)
    return file.getvalue()


def searchable(source, reader, dpi=72):
    """Return the pages of a document, and its searchable PDF; at 72 dpi a pixel is a point."""
    with Document(source, dpi=dpi) as document:
        pages = [reader.read_page(image) for image in document.pages()]
        return pages, FORMATS["pdf"].write(pages, document)


def turned(drawn, rotation):
    return Image.fromarray(np.ascontiguousarray(np.rot90(drawn.pixels, -rotation // 90)))


def words_of(page):
    return [word for line in page.lines for word in line.words]


def found_by_poppler(data, tmp_path):
    (tmp_path / "a.pdf").write_bytes(data)
    out = subprocess.run(
        ["pdftotext", "-bbox", "-cropbox", str(tmp_path / "a.pdf"), "-"], capture_output=True, check=True, text=True
    )
    return [(one[4], np.array([float(number) for number in one[:4]])) for one in WORD.findall(out.stdout)]


def found_by_pdfium(data):
    """Return every character and the corners of its box on the displayed page, y down, in points."""
    import pypdfium2
    import pypdfium2.raw

    file = pypdfium2.PdfDocument(data)
    page = file[0]
    text = page.get_textpage()
    height = page.get_height()
    found = []
    for index in range(text.count_chars()):
        left, bottom, right, top = text.get_charbox(index, loose=True)
        code = pypdfium2.raw.FPDFText_GetUnicode(text, index)
        found.append((chr(code), np.array([left, height - top, right, height - bottom])))
    text.close()
    page.close()
    file.close()
    return found


@pytest.mark.skipif(POPPLER, reason="pdftotext is not installed (poppler-utils)")
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_poppler_finds_every_word_where_it_was_read(drawn, page_reader, rotation, tmp_path):
    (page,), data = searchable(saved(turned(drawn, rotation), "PNG", dpi=(72, 72)), page_reader)
    found = found_by_poppler(data, tmp_path)
    assert sorted(text for text, _ in found) == sorted(page.text.split())
    for word in words_of(page):
        wanted = np.concatenate([word.polygon.min(axis=0), word.polygon.max(axis=0)])
        assert min(np.abs(box - wanted).max() for text, box in found if text == word.text) <= 2


@pytest.mark.skipif(POPPLER, reason="pdftotext is not installed (poppler-utils)")
@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_the_text_over_a_pdf_lies_on_its_page_however_that_is_turned_and_cropped(drawn, page_reader, rotate, tmp_path):
    import pikepdf

    with pikepdf.open(io.BytesIO(saved(turned(drawn, 0), "PDF", resolution=72.0))) as file:
        file.pages[0].rotate(rotate, relative=False)
        file.pages[0].mediabox = [-30, -20, 460, 320]
        file.pages[0].cropbox = [10, 20, 420, 290]
        out = io.BytesIO()
        file.save(out)
    (page,), data = searchable(out.getvalue(), page_reader)
    assert page.rotation == rotate
    with Document(data, dpi=72) as document:
        assert document.page(1).pixels.shape[:2] == (page.height, page.width)
    found = found_by_poppler(data, tmp_path)
    assert sorted(text for text, _ in found) == sorted(page.text.split())
    boxes = dict(found)
    for word in words_of(page):
        wanted = np.concatenate([word.polygon.min(axis=0), word.polygon.max(axis=0)])
        assert np.abs(boxes[word.text] - wanted).max() <= 2


def test_pdfium_finds_every_character_within_its_word(drawn, page_reader):
    (page,), data = searchable(saved(turned(drawn, 0), "PNG", dpi=(72, 72)), page_reader)
    found = [(one, box) for one, box in found_by_pdfium(data) if one.strip()]
    assert "".join(one for one, _ in found) == "".join(page.text.split())
    at = 0
    for word in words_of(page):
        low, high = word.polygon.min(axis=0), word.polygon.max(axis=0)
        boxes = np.stack([box for _, box in found[at : at + len(word.text)]])
        assert np.abs(boxes[:, 0].min() - low[0]) <= 2
        assert np.abs(boxes[:, 2].max() - high[0]) <= 2
        at += len(word.text)


def test_a_jpeg_goes_in_as_it_is_and_stands_as_exif_says(drawn, page_reader):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(turned(drawn, 270), "JPEG", exif=exif, quality=92, dpi=(72, 72))
    (page,), written = searchable(data, page_reader)
    assert data in written
    assert (page.rotation, page.width) == (0, 420)
    with Document(written, dpi=72) as document:
        shown = document.page(1).pixels
    assert shown.shape == drawn.pixels.shape
    assert np.abs(shown.astype(int) - drawn.pixels).mean() < 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_of_a_jpeg_is_shown_upright(orientation):
    shown = np.full((40, 60, 3), 255, np.uint8)
    shown[:20, :30], shown[20:, 30:] = (200, 0, 0), (0, 0, 200)
    exif = Image.Exif()
    exif[0x0112] = orientation
    # Stored so that the orientation undoes it.
    names = [
        None,
        "FLIP_LEFT_RIGHT",
        "ROTATE_180",
        "FLIP_TOP_BOTTOM",
        "TRANSPOSE",
        "ROTATE_90",
        "TRANSVERSE",
        "ROTATE_270",
    ]
    stored = Image.fromarray(shown)
    if names[orientation - 1]:
        stored = stored.transpose(getattr(Image.Transpose, names[orientation - 1]))
    with Document(saved(stored, "JPEG", exif=exif, quality=95, subsampling=0)) as document:
        assert np.abs(document.page(1).pixels.astype(int) - shown)[5:-5, 5:-5].mean() < 6
        written = FORMATS["pdf"].write([Page("a", 1, 60, 40, 72.0, 0, ())], document)
    with Document(written, dpi=72) as document:
        assert np.abs(document.page(1).pixels.astype(int) - shown).mean() < 10


def test_several_pages_and_any_script_can_be_searched_for(tmp_path):
    corners = np.array([[20, 20], [180, 20], [180, 40], [20, 40]], np.float32)
    texts = ["Đặng", "漢字", "😀x"]
    pages = []
    for number, text in enumerate(texts, 1):
        word = Word(text, 1.0, corners, np.stack([corners] * len(text)))
        pages.append(Page("a", number, 200, 60, 72.0, 0, (Line(text, 1.0, corners, (word,)),)))
    sheets = [Image.new("L", (200, 60), 255 - number) for number in range(3)]
    with Document(saved(sheets[0], "TIFF", save_all=True, append_images=sheets[1:])) as document:
        data = FORMATS["pdf"].write(pages, document)
    import pypdfium2

    file = pypdfium2.PdfDocument(data)
    for number, text in enumerate(texts):
        sheet = file[number]
        reader = sheet.get_textpage()
        assert reader.get_text_range().strip() == text
        reader.close()
        sheet.close()
    file.close()


def test_the_font_without_shapes_is_a_whole_truetype_file():
    data = glyphless_font()
    version, count = struct.unpack_from(">LH", data)
    assert version == 0x10000
    for index in range(count):
        tag, total, offset, length = struct.unpack_from(">4sLLL", data, 12 + 16 * index)
        content = data[offset : offset + length + -length % 4]
        assert sum(struct.unpack(f">{len(content) // 4}L", content)) & 0xFFFFFFFF == total, tag
    from fontTools.ttLib import TTFont

    font = TTFont(io.BytesIO(data))
    assert font["maxp"].numGlyphs == 2
    assert font["hmtx"].metrics[font.getGlyphName(1)] == (500, 0)
    assert font["head"].unitsPerEm == 1000
    assert font["OS/2"].sTypoAscender == 780
    assert font["post"].isFixedPitch == 1
