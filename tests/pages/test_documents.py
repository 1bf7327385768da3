"""Every kind of input: pictures as a viewer shows them, TIFF of many pages, PDFs, limits, damage."""

from __future__ import annotations

import io
import os
import signal
import struct

import numpy as np
import pytest
from PIL import Image

from inkmill.errors import DataError, ImageError, PageLimitError
from inkmill.pages.documents import Document, open_pages, resolution
from inkmill.pages.pdf import PdfProcess

TURNED_BY_EXIF = [
    None,
    "FLIP_LEFT_RIGHT",
    "ROTATE_180",
    "FLIP_TOP_BOTTOM",
    "TRANSPOSE",
    "ROTATE_90",
    "TRANSVERSE",
    "ROTATE_270",
]
"""What a camera did to the picture for each EXIF orientation, 1 to 8."""


def saved(image, kind, **options):
    file = io.BytesIO()
    image.copy().save(file, kind, **options)
    return file.getvalue()


def picture(seed=0, size=(60, 40)):
    """A picture whose four corners differ."""
    image = Image.new("RGB", size, "white")
    for corner, colour in zip([(0, 0), (size[0] - 20, 0), (0, size[1] - 15)], ["red", "green", "blue"], strict=True):
        image.paste(colour, (*corner, corner[0] + 20, corner[1] + 15))
    image.putpixel((30, 20), (seed, seed, seed))
    return image


def pages_of(source, **options):
    with Document(source, **options) as document:
        return list(document.pages())


@pytest.fixture
def pdf():
    """Three pages of 144 x 96 points: at 100 dpi 200 x 134 pixels."""
    sheets = [picture(seed, (192, 128)) for seed in range(3)]
    return saved(sheets[0], "PDF", save_all=True, append_images=sheets[1:], resolution=96.0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("given", ["path", "bytes"])
def test_a_photograph_is_upright_however_it_is_given(orientation, given, tmp_path):
    stored = picture()
    if TURNED_BY_EXIF[orientation - 1]:
        stored = stored.transpose(getattr(Image.Transpose, TURNED_BY_EXIF[orientation - 1]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(stored, "JPEG", exif=exif, quality=95, subsampling=0)
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    (page,) = pages_of(data if given == "bytes" else path)
    assert page.pixels.shape == (40, 60, 3)
    assert np.abs(page.pixels.astype(int) - np.asarray(picture())).max() < 60


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("CMYK", "JPEG"), ("P", "PNG"), ("I;16", "PNG"), ("RGBA", "PNG"), ("1", "PNG"), ("L", "TIFF"), ("CMYK", "TIFF")],
)
def test_ink_is_dark_on_white_paper_in_every_mode(mode, kind):
    gray = np.full((40, 60), 255, np.uint8)
    gray[10:20, 10:50] = 0
    if mode == "RGBA":
        image = Image.fromarray(np.dstack([np.zeros((40, 60, 3), np.uint8), 255 - gray]))
    elif mode == "I;16":
        image = Image.fromarray(gray.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(gray).convert("RGB").convert(mode)
    (page,) = pages_of(saved(image, kind))
    assert np.abs(page.pixels.astype(int) - gray[..., None]).max() < 40


def test_colours_keep_their_channels_whether_bytes_or_an_array():
    image = picture()
    (from_bytes,), (from_array,) = pages_of(saved(image, "PNG")), pages_of(np.asarray(image))
    assert np.array_equal(from_bytes.pixels, from_array.pixels)
    assert from_bytes.pixels[0, 0].tolist() == [255, 0, 0]


def test_a_tiff_of_several_pages_gives_each_in_order():
    sheets = [picture(seed, (60 + seed, 40)) for seed in range(4)]
    data = saved(sheets[0], "TIFF", save_all=True, append_images=sheets[1:], dpi=(300, 300))
    found = pages_of(data)
    assert [page.number for page in found] == [1, 2, 3, 4]
    assert all(np.array_equal(page.pixels, np.asarray(sheet)) for page, sheet in zip(found, sheets, strict=True))


def test_a_tiff_whose_pages_go_round_in_a_circle_is_refused():
    data = bytearray(saved(picture(), "TIFF"))
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    struct.pack_into("<I", data, start + 2 + 12 * count, start)
    with pytest.raises(ImageError, match="circle"):
        Document(bytes(data), "round.tif")


def test_a_bad_page_of_a_tiff_does_not_cost_the_others():
    sheets = [picture(seed) for seed in range(3)]
    data = bytearray(saved(sheets[0], "TIFF", save_all=True, append_images=sheets[1:]))
    (start,) = struct.unpack_from("<I", data, 4)
    with Document(bytes(data)) as whole:
        second = struct.unpack_from("<I", whole.encoded(2), 4)[0]
    (count,) = struct.unpack_from("<H", data, second)
    for entry in range(second + 2, second + 2 + 12 * count, 12):
        if struct.unpack_from("<H", data, entry)[0] == 256:  # the width
            struct.pack_into("<I", data, entry + 8, 0)
    assert start != second
    with Document(bytes(data), "three.tif") as document:
        assert document.count == 3
        with pytest.raises(ImageError, match=r"three.tif: page 2: "):
            document.page(2)
        assert document.page(3).pixels.shape == (40, 60, 3)


def test_the_pages_of_a_pdf_are_drawn_at_the_dpi_that_is_asked_for(pdf):
    with Document(pdf, "a.pdf", dpi=100) as document:
        assert document.count == 3
        page = document.page(2)
    assert page.pixels.shape == (134, 200, 3)
    assert (page.number, page.dpi) == (2, 100)
    assert page.pixels[5, 5].tolist()[0] > 200
    assert page.pixels[5, 5].tolist()[2] < 60


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_a_page_of_a_pdf_is_turned_and_cropped_as_a_viewer_does(rotate):
    import pikepdf

    with pikepdf.open(io.BytesIO(saved(picture(size=(192, 128)), "PDF", resolution=96.0))) as file:
        file.pages[0].rotate(rotate, relative=False)
        file.pages[0].cropbox = [0, 20, 144, 96]
        out = io.BytesIO()
        file.save(out)
    (page,) = pages_of(out.getvalue(), dpi=72)
    assert page.pixels.shape[:2] == ((76, 144) if rotate in (0, 180) else (144, 76))
    upright = np.rot90(page.pixels, rotate // 90)
    assert upright[3, 3, 0] > 200
    assert upright[3, -4, 1] > 100
    assert upright[3, -4, 0] < 90


def test_more_pages_than_are_allowed_are_an_error_and_no_cut(pdf):
    with pytest.raises(PageLimitError, match=r"a.pdf: 3 pages, and 1 to 2 are allowed"):
        Document(pdf, "a.pdf", max_pages=2)
    sheets = [picture()] * 4
    with pytest.raises(PageLimitError, match="more than 3 pages"):
        Document(saved(sheets[0], "TIFF", save_all=True, append_images=sheets[1:]), max_pages=3)


def test_a_page_with_more_pixels_than_are_allowed_is_refused_before_it_is_drawn(pdf):
    with (
        Document(pdf, "a.pdf", dpi=5000, max_pixels=1 << 20) as document,
        pytest.raises(PageLimitError, match="inches"),
    ):
        document.page(1)
    with (
        Document(saved(picture(), "PNG"), "a.png", max_pixels=100) as document,
        pytest.raises(ImageError, match=r"a\.png"),
    ):
        document.page(1)


def test_a_page_that_takes_too_long_is_given_up_and_the_next_is_read(pdf):
    with PdfProcess(pdf, "slow.pdf") as file:
        file._seconds = 0.0
        with pytest.raises(ImageError, match=r"slow.pdf: page 1: took longer than 0 s"):
            file.render(1, 100, 1 << 24)
        file._seconds = 60.0
        assert file.render(2, 100, 1 << 24).shape == (134, 200, 3)


def test_a_process_that_dies_costs_one_page(pdf):
    with PdfProcess(pdf, "a.pdf") as file:
        os.kill(file._process.pid, signal.SIGKILL)
        with pytest.raises(ImageError, match="page 1"):
            file.render(1, 100, 1 << 24)
        assert file.render(1, 100, 1 << 24).shape == (134, 200, 3)


def test_an_encrypted_pdf_asks_for_its_password_and_opens_with_it(pdf):
    import pikepdf

    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(pdf)) as file:
        file.save(out, encryption=pikepdf.Encryption(owner="o", user="secret"))
    with pytest.raises(DataError, match="encrypted"):
        Document(out.getvalue(), "a.pdf")
    with Document(out.getvalue(), "a.pdf", password="secret") as document:
        assert document.count == 3


@pytest.mark.parametrize(
    "data",
    [b"", b"%PDF-1.4 nothing", b"\x89PNG\r\n\x1a\n", b"text", b"II*\0", b"II*\0\x08\0\0\0\xff\xff", b"\xff\xd8\xff"],
)
def test_what_is_no_document_is_named_in_one_sentence(data):
    with pytest.raises(DataError, match="odd"):
        list(open_pages(data, "odd"))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"nowhere\.png"):
        Document("nowhere.png")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_the_resolution_is_that_of_the_file(kind):
    assert resolution(saved(picture(), kind, dpi=(300, 300))) == pytest.approx(300, abs=0.1)
    assert resolution(saved(picture(), kind, dpi=(3, 3))) is None
    assert resolution(saved(picture(), "WEBP")) is None
