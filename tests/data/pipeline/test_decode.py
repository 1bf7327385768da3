"""Pixels from bytes: every format, every orientation, and bytes that lie."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.data.pipeline.decode import decode, image_size
from inkmill.errors import ImageError


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """A smooth RGB picture of 60 x 40 pixels."""
    seed = np.random.default_rng(0).integers(0, 256, (5, 9, 3), np.uint8)
    return cv2.resize(seed, (60, 40))


def encode(rgb: np.ndarray, suffix: str, *flags: int) -> bytes:
    bgr = rgb[..., ::-1] if rgb.ndim == 3 and rgb.shape[2] == 3 else rgb
    return cv2.imencode(suffix, bgr, list(flags))[1].tobytes()


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".webp", ".jpg", ".gif"])
def test_every_format_gives_rgb_and_gray_and_its_size(picture: np.ndarray, suffix: str) -> None:
    flags = (cv2.IMWRITE_WEBP_QUALITY, 101) if suffix == ".webp" else ()  # above 100: lossless
    data = encode(picture, suffix, *flags)
    assert image_size(data) == (60, 40)
    rgb, gray = decode(data, 3), decode(data, 1)
    tolerance = {".jpg": 3.0, ".gif": 20.0}.get(suffix, 0.0)  # mean of 255; a GIF has few colours
    assert np.abs(rgb.astype(int) - picture).mean() <= tolerance
    luma = picture @ np.array([0.299, 0.587, 0.114])
    assert np.abs(gray[..., 0] - luma).mean() <= tolerance + 0.5
    assert rgb.dtype == gray.dtype == np.uint8
    assert rgb.shape == (40, 60, 3)
    assert gray.shape == (40, 60, 1)
    assert rgb.flags.c_contiguous
    assert gray.flags.c_contiguous


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tiff"])
def test_transparent_pixels_lie_on_white(suffix: str) -> None:
    alpha = np.array([[0, 128, 255]], np.uint8)
    bgra = np.dstack([np.zeros((1, 3, 3), np.uint8), alpha])
    flags = (cv2.IMWRITE_WEBP_QUALITY, 101) if suffix == ".webp" else ()
    data = encode(bgra, suffix, *flags)
    assert decode(data, 3)[0].tolist() == [[255] * 3, [127] * 3, [0] * 3]
    assert decode(data, 1)[0, :, 0].tolist() == [255, 127, 0]


def png(kind: int, depth: int, width: int, rows: list[bytes], *chunks: tuple[bytes, bytes]) -> bytes:
    header = struct.pack(">IIBBBBB", width, len(rows), depth, kind, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


def test_a_palette_with_a_transparent_entry_lies_on_white() -> None:
    palette = bytes([255, 0, 0, 0, 0, 255])
    data = png(3, 8, 2, [bytes([0, 1])], (b"PLTE", palette), (b"tRNS", bytes([0, 255])))
    assert decode(data, 3)[0].tolist() == [[255, 255, 255], [0, 0, 255]]


def test_sixteen_bits_scale_to_eight_with_full_scale_kept() -> None:
    deep = np.array([[0, 257, 32896, 65535]], np.uint16)
    assert decode(encode(deep, ".png"), 1)[0, :, 0].tolist() == [0, 1, 128, 255]


def test_one_bit_is_black_and_white() -> None:
    assert decode(png(0, 1, 3, [bytes([0b10100000])]), 1)[0, :, 0].tolist() == [255, 0, 255]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_stands_as_its_exif_orientation_says(picture: np.ndarray, kind: str, orientation: int) -> None:
    pillow = pytest.importorskip("PIL.Image")
    ops = pytest.importorskip("PIL.ImageOps")
    exif = pillow.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    pillow.fromarray(picture).save(file, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    shown = np.asarray(ops.exif_transpose(pillow.open(file)).convert("RGB"))
    image = decode(file.getvalue(), 3)
    assert image_size(file.getvalue()) == (image.shape[1], image.shape[0])
    assert np.abs(image.astype(int) - shown).max() <= 2


@pytest.mark.parametrize("flags", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 2)])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_jpeg_cut_in_its_body_is_unreadable(picture: np.ndarray, flags: tuple[int, ...], share: float) -> None:
    data = encode(picture, ".jpg", *flags)
    cut = data[: int(len(data) * share)]
    for broken in (cut, cut + bytes(len(data) - len(cut))):  # a download that stopped; the same in a sparse file
        with pytest.raises(ImageError, match=r"cut short|damaged"):
            decode(broken, 3)


def test_a_thumbnail_with_an_end_marker_does_not_hide_a_cut(picture: np.ndarray) -> None:
    data = encode(picture, ".jpg")
    thumbnail = b"\xff\xed" + struct.pack(">H", 2 + len(data)) + data
    whole = data[:2] + thumbnail + data[2:]
    assert np.array_equal(decode(whole, 3), decode(data, 3))
    with pytest.raises(ImageError, match="no end marker"):
        decode(whole[:-300], 3)


def test_a_jpeg_of_fillers_is_read_at_once_and_one_of_segments_refused(picture: np.ndarray) -> None:
    data = encode(picture, ".jpg")
    filled = data[:2] + b"\xff" * 8_000_000 + data[2:]
    assert image_size(filled) == image_size(data)
    with pytest.raises(ImageError, match="header is longer than 8 MiB"):
        image_size(data[:2] + b"\xff\x01" * 5_000_000 + data[2:])


def test_of_a_tiffs_repeated_tags_the_first_counts(picture: np.ndarray) -> None:
    """As in the library that decodes it: else a small size could be told, and a large one decoded."""
    entries = [(0x100, 400), (0x101, 300), (0x100, 1), (0x101, 1)]
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    assert image_size(b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory) == (400, 300)


def test_a_tiff_of_gray_with_transparency_is_refused() -> None:
    """OpenCV reads what its transparency hides."""
    hidden = io.BytesIO()
    pytest.importorskip("PIL.Image").new("LA", (8, 8), (0, 0)).save(hidden, "TIFF")
    with pytest.raises(ImageError, match="gray with transparency is not read; save the image as PNG"):
        decode(hidden.getvalue(), 1)


def test_bytes_after_a_jpegs_end_are_harmless(picture: np.ndarray) -> None:
    data = encode(picture, ".jpg")
    assert np.array_equal(decode(data + b"camera maker's note", 3), decode(data, 3))


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".tiff", ".gif"])
def test_other_formats_cut_in_half_are_unreadable(picture: np.ndarray, suffix: str) -> None:
    data = encode(picture, suffix)
    with pytest.raises(ImageError, match=r"cut short|damaged"):
        decode(data[: len(data) // 2], 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", r"empty \(0 bytes\)"),
        (b"hello world, not an image", "known format"),
        (b"\x89PNG\r\n\x1a\n", "cut short"),
        (b"\xff\xd8\xff", "cut short"),
        (b"\xff\xd8\x00\x00\x00\x00", "damaged at byte 2"),
        (png(0, 8, 0, [b""]), "size of 0x1"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(data: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        decode(data, 1)


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    bomb = png(0, 8, 100_000, [b""] * 100_000)  # 10 G pixels claimed in a few hundred bytes
    assert image_size(bomb) == (100_000, 100_000)
    with pytest.raises(ImageError, match="100000x100000, more than the 67,108,864 pixels allowed"):
        decode(bomb, 3)


def test_float_samples_are_refused() -> None:
    with pytest.raises(ImageError, match="float32 samples"):
        decode(encode(np.zeros((4, 4), np.float32), ".tiff"), 1)


@settings(max_examples=150)
@given(
    suffix=st.sampled_from([".png", ".jpg", ".bmp", ".webp", ".tiff", ".gif"]),
    damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_damaged_bytes_give_an_image_or_an_image_error(suffix: str, damage: list[tuple[int, int]]) -> None:
    data = bytearray(encode(np.full((8, 12, 3), 77, np.uint8), suffix))
    for position, value in damage:
        data[position % len(data)] = value
    try:
        image = decode(bytes(data), 3, max_pixels=2**16)
    except ImageError:
        return
    assert image.ndim == 3
    assert image.shape[2] == 3


def test_real_captchas_decode_and_their_headers_agree(captchas: Path) -> None:
    for path in sorted((captchas / "images").iterdir())[:20]:
        data = path.read_bytes()
        height, width, _ = decode(data, 3).shape
        assert image_size(data) == (width, height)
