"""From a file's bytes to pixels: the only place where inkmill decodes an image.

Training, validation, conversion and reading must see the same pixels, so every choice is made here once: colours are
RGB, transparency lies on white (ink is dark far more often than light), 16-bit samples are scaled to 8, an image
stands as its EXIF orientation says, and of an animation the first frame counts.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.image_header import ImageHeader, read_header
from inkmill.errors import ImageError, ImageSizeError

Image = NDArray[np.uint8]
Channels = Literal[1, 3]

MAX_PIXELS = 64 * 2**20
"""Largest image that is decoded, in pixels: 8192 x 8192, enough for a scanned A3 page at 600 dpi."""

_JPEG_END = b"\xff\xd9"


def single_threaded() -> None:
    """Keep OpenCV to one thread in this process: with a process on every core, more threads only compete."""
    cv2.setNumThreads(0)


def image_size(data: bytes) -> tuple[int, int]:
    """Return (width, height) as a viewer shows the image, from its header alone.

    Raises:
        ImageError: see `inkmill.data.pipeline.image_header.read_header`.
    """
    return read_header(data).upright_size


def decode(data: bytes, channels: Channels, max_pixels: int = MAX_PIXELS) -> Image:
    """Decode an image.

    Args:
        data: the file's bytes: JPEG, PNG, GIF, BMP, WebP or TIFF.
        channels: 1 for gray (ITU-R BT.601 luma), 3 for RGB.
        max_pixels: refuse larger images, before memory is allocated for them.

    Returns:
        uint8 (height, width, channels), contiguous.

    Raises:
        ImageError: unreadable, cut short, or too large; the message gives the reason, the caller knows the name.
    """
    # 1. The size, before a decoder allocates memory for it.
    header = read_header(data)
    if header.width * header.height > max_pixels:
        raise ImageSizeError(
            f"the image is {header.width}x{header.height}, more than the {max_pixels:,} pixels allowed"
        )
    # 2. JPEG: OpenCV gives eight bits, turned upright, in the channels asked for.
    if header.format == "JPEG":
        return _decode_jpeg(data, header, channels)
    # 3. The others as they are stored, for OpenCV would drop transparency and cut 16 bits its own way.
    pixels = _imdecode(data, cv2.IMREAD_UNCHANGED, header)
    # libtiff turns the image itself, and multiplies 8-bit colours by alpha.
    is_tiff = header.format == "TIFF"
    opaque = _on_white(_eight_bits(pixels), premultiplied=is_tiff and pixels.dtype == np.uint8)
    return _to_channels(opaque if is_tiff else turn(opaque, header.orientation), channels)


def from_array(pixels: NDArray[Any], channels: Channels, max_pixels: int = MAX_PIXELS) -> Image:
    """Return an array as `decode` returns the file that holds it, without writing one.

    Args:
        pixels: uint8 or uint16 (H, W) gray, (H, W, 1) gray, (H, W, 3) RGB or (H, W, 4) RGBA.
        channels: 1 for gray (ITU-R BT.601 luma), 3 for RGB.
        max_pixels: refuse larger images, as `decode` does.

    Returns:
        uint8 (height, width, channels), contiguous; it may share memory with `pixels`.

    Raises:
        ImageError: another shape or type, or too large.
    """
    if pixels.dtype not in (np.uint8, np.uint16) or pixels.ndim not in (2, 3) or not pixels.size:
        raise ImageError(f"a {pixels.dtype} array of shape {pixels.shape}; expected uint8 HW or HWC")
    height, width = pixels.shape[:2]
    found = 1 if pixels.ndim == 2 else pixels.shape[2]
    if found not in (1, 3, 4):
        raise ImageError(f"{found} channels; expected 1 (gray), 3 (RGB) or 4 (RGBA)")
    if height * width > max_pixels:
        raise ImageSizeError(f"the image is {width}x{height}, more than the {max_pixels:,} pixels allowed")
    opaque = _on_white(_eight_bits(np.ascontiguousarray(pixels)), premultiplied=False)
    if found == 1:
        gray = opaque.reshape(height, width, 1)
        return gray if channels == 1 else cast(Image, cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB))
    if channels == 3:
        return opaque
    return cast(Image, cv2.cvtColor(opaque, cv2.COLOR_RGB2GRAY).reshape(height, width, 1))


def _decode_jpeg(data: bytes, header: ImageHeader, channels: Channels) -> Image:
    # libjpeg fills what is missing with gray and only warns. Inside a scan the two bytes of the end marker cannot
    # occur, so a file without them after its first scan began was cut short. Bytes after the marker are harmless.
    if data.rfind(_JPEG_END, header.body) < 0:
        raise ImageError("the JPEG is cut short: it has no end marker")
    if channels == 1:
        return cast(Image, _imdecode(data, cv2.IMREAD_GRAYSCALE, header)[:, :, None])
    return _imdecode(data, cv2.IMREAD_COLOR_RGB, header)


def _imdecode(data: bytes, flag: int, header: ImageHeader) -> NDArray[Any]:
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        image = None
    if image is None:
        raise ImageError(f"the {header.format} data are damaged or cut short")
    return cast("NDArray[Any]", image)


def _eight_bits(image: NDArray[Any]) -> Image:
    if image.dtype == np.uint8:
        return cast(Image, image)
    if image.dtype == np.uint16:  # 65535 / 257 = 255: full scale stays full scale
        return cast(Image, cv2.convertScaleAbs(image, alpha=1 / 257))
    raise ImageError(f"the image has {image.dtype} samples, where 8 or 16 bit are expected")


def turn(image: Image, orientation: int) -> Image:
    """Undo an EXIF orientation, 1 to 8 (Exif 2.3, tag 0x0112)."""
    if orientation >= 5:
        image = image.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _on_white(image: Image, premultiplied: bool) -> Image:
    """Composite BGRA on white; gray and BGR pass."""
    if image.ndim == 2 or image.shape[2] != 4:
        return image
    colour, alpha = image[:, :, :3], image[:, :, 3:]
    if alpha.min() == 255:
        return np.ascontiguousarray(colour)
    if premultiplied:
        return cv2.add(colour, np.repeat(255 - alpha, 3, axis=2))  # type: ignore[return-value]
    # Ink is what the colour takes from white; alpha scales it. 127 rounds to nearest.
    ink = (255 - colour).astype(np.uint16) * alpha + 127
    return (255 - ink // 255).astype(np.uint8)


def _to_channels(image: Image, channels: Channels) -> Image:
    """Turn gray or BGR into gray or RGB."""
    height, width = image.shape[:2]
    found = image.size // (height * width)
    if found not in (1, 3):
        raise ImageError(f"the image has {found} channels, where gray, RGB or RGBA are expected")
    if found == 1:
        return cast(
            Image, image.reshape(height, width, 1) if channels == 1 else cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
        )
    converted = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY if channels == 1 else cv2.COLOR_BGR2RGB)
    return cast(Image, converted.reshape(height, width, channels))
