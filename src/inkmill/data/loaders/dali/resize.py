"""How DALI follows `data.pipeline.resize`: which encoded images it may decode, and to which sizes it resizes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.dali.columns import Columns
from inkmill.data.pipeline.decode import MAX_PIXELS
from inkmill.data.pipeline.image_header import ImageHeader
from inkmill.data.pipeline.resize import Resize

HALVINGS = 3
"""Steps of `Resize` before its last that the graph has; an image that shrinks more than 16 times is resized here."""

_MAX_SHRINK = 2 ** (HALVINGS + 1)
_JPEG_END = b"\xff\xd9"
_PNG_TYPES_WITHOUT_ALPHA = (0, 2, 3)


Sizes = NDArray[np.int32]
"""(B, 3): rows and columns of each decoded image, and how many columns of the input it fills."""


def dali_decodes(data: bytes, header: ImageHeader, resize: Resize) -> bool:
    """Return whether DALI gives the same pixels as `inkmill.data.pipeline.decode`; the others are decoded here.

    Left out are formats other than JPEG and PNG, transparency (DALI drops it), print colours, images that shrink more
    than sixteen times, are too large, or look cut short (`decode` knows how to say so; a pipeline dies of it).
    """
    width, height = header.upright_size
    if width * height > MAX_PIXELS or width > _MAX_SHRINK * resize.valid_width(width, height):
        return False
    if height > _MAX_SHRINK * resize.height:
        return False
    if header.format == "JPEG":
        return header.components in (1, 3) and data.rfind(_JPEG_END, header.body) >= 0
    return header.format == "PNG" and _plain_png(data)


def _plain_png(data: bytes) -> bool:
    pixels = data.find(b"IDAT", 33)
    return data[25] in _PNG_TYPES_WITHOUT_ALPHA and pixels >= 0 and data.find(b"tRNS", 33, pixels) < 0


def netpbm(image: NDArray[np.uint8]) -> bytes:
    """Return an image as a PPM or PGM file: how pixels that were decoded here go through DALI's decoder."""
    height, width, channels = image.shape
    return b"P%d\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height) + image.tobytes()


def files(images: list[bytes]) -> Any:
    """Return files for DALI: uint8 (B, longest), where that does not waste memory, else one array a file.

    DALI takes an array at once, and decoders stop at the end of the image: what follows, zeros here, is not read.
    """
    longest = max(map(len, images))
    if longest * len(images) > 4 * sum(map(len, images)) + 2**24:
        return [np.frombuffer(image, np.uint8) for image in images]
    return np.frombuffer(b"".join(image.ljust(longest, b"\0") for image in images), np.uint8).reshape(-1, longest)


def resize_columns(sizes: Sizes, resize: Resize, width: int) -> Columns:
    """Return the graph's inputs that fit a batch: the sizes that `inkmill.data.pipeline.resize.resize` goes through.

    "halves" has three numbers for each step before the last: rows, columns, and whether the image takes this step.
    "halvings" and "scale", for those steps and for the last, are matrices from the result's pixels to the image's,
    corners at whole numbers, one below the other.

    Args:
        sizes: of the decoded images.
        resize: how they are resized.
        width: columns of the batch, padding included.
    """
    count, size = len(sizes), sizes[:, :2]
    valid = np.stack([np.full_like(sizes[:, 2], resize.height), sizes[:, 2]], axis=1)
    halves, halvings = np.zeros((count, HALVINGS, 3), np.float32), np.zeros((count, HALVINGS, 3, 3), np.float32)
    for step in range(HALVINGS):
        too_large = size > 2 * valid
        smaller = np.where(too_large, -(-size // 2), size)
        halves[:, step, :2], halves[:, step, 2] = smaller, np.any(too_large, axis=1)
        halvings[:, step] = _scale(size, smaller)
        size = smaller
    columns: Columns = {
        "halved": halves[:, 0, 2] > 0,
        "halves": halves.reshape(count, -1),
        "halvings": halvings.reshape(count, -1, 3),
        "scale": _scale(size, valid),
    }
    if resize.mode != "stretch":
        columns["valid"] = valid.astype(np.float32)
        columns["padded"] = valid[:, 1] < width
        columns["full"] = np.tile(np.array([resize.height, width], np.float32), (count, 1))
    return columns


def _scale(size: Sizes, goal: Sizes) -> NDArray[np.float32]:
    """Return (B, 3, 3): where in an image of `size`, (rows, columns), lies what is shown in one of size `goal`."""
    scale = np.zeros((len(size), 3, 3), np.float32)
    scale[:, 0, 0], scale[:, 1, 1], scale[:, 2, 2] = size[:, 1] / goal[:, 1], size[:, 0] / goal[:, 0], 1
    return scale
