"""How DALI follows `inkmill.data.fit`: which encoded images it may decode, and the numbers that make its resize ours.

DALI's antialiased resize is the same triangle filter with one difference: beyond the border it repeats the outermost
pixel, where inkmill leaves out what is not there and lets the rest weigh more. On real crops that alone makes up to 24
of 255 in the outermost rows and columns. So an image that shrinks is pasted onto a black canvas with a margin, resized
from the part that it covers, and divided by the share of the filter that fell inside. What is left is rounding: 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.dali_columns import Columns
from inkmill.data.decode import MAX_PIXELS
from inkmill.data.fit import Fit
from inkmill.data.image_header import ImageHeader

_MAX_SHRINK = 16  # beyond this `fit` shrinks with a box first
_JPEG_END = b"\xff\xd9"
_PNG_TYPES_WITHOUT_ALPHA = (0, 2, 3)


class Size(NamedTuple):
    """Of one image: as decoded, and the part of the input that it fills."""

    height: int
    width: int
    valid_width: int


def dali_decodes(data: bytes, header: ImageHeader, fit: Fit) -> bool:
    """Return whether DALI gives the same pixels as `inkmill.data.decode`; the others are decoded here.

    Left out are formats other than JPEG and PNG, transparency (DALI drops it), print colours, images that shrink more
    than sixteen times, are too large, or look cut short (`decode` knows how to say so; a pipeline dies of it).
    """
    width, height = header.upright_size
    if width * height > MAX_PIXELS or width > _MAX_SHRINK * fit.valid_width(width, height):
        return False
    if height > _MAX_SHRINK * fit.height:
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


def fit_columns(sizes: list[Size], fit: Fit, width: int) -> Columns:
    """Return the graph's inputs that fit a batch; see `dali_graph`.

    Args:
        sizes: of the decoded images.
        fit: how they are fitted.
        width: columns of the batch, padding included.
    """
    decoded = np.array([size[:2] for size in sizes], np.int32)
    valid = np.array([(fit.height, size.valid_width) for size in sizes], np.int32)
    scale = np.maximum(decoded / valid, 1)
    margin = np.ceil(scale / 2).astype(np.int32) + 1
    shrunk = np.any(decoded > valid, axis=1)
    columns: Columns = {
        "valid": valid.astype(np.float32),
        "shrunk": shrunk,
        "canvas": decoded + 2 * margin,
        "margin": margin[:, None, :],
        "first": margin.astype(np.float32),
        "last": (margin + decoded).astype(np.float32),
        "inside_y": _shares(decoded[:, 0], valid[:, 0], shape=(-1, 1, 1)),
        "inside_x": _shares(decoded[:, 1], valid[:, 1], shape=(1, -1, 1)),
    }
    if fit.mode != "stretch":
        columns["padded"] = valid[:, 1] < width
        columns["full"] = np.tile(np.array([fit.height, width], np.float32), (len(sizes), 1))
    return columns


def _shares(size: NDArray[np.int32], new_size: NDArray[np.int32], shape: tuple[int, int, int]) -> Any:
    """Return `_inside` of each image, to be multiplied along one axis: an array where all have one length."""
    pairs, which = np.unique(np.stack([size, new_size], axis=1), axis=0, return_inverse=True)
    shares = [_inside(old, new).reshape(shape) for old, new in pairs.tolist()]
    if (new_size == new_size[0]).all():
        return np.stack(shares)[which.reshape(-1)]
    return [shares[number] for number in which.reshape(-1).tolist()]


@lru_cache(maxsize=4096)
def _inside(size: int, new_size: int) -> NDArray[np.float32]:
    """Return which share of each output pixel's filter lies inside the image: float32 (new_size,), above 0 to 1."""
    scale = size / new_size
    radius = max(scale, 1.0)
    centre = (np.arange(new_size) + 0.5) * scale
    reach = int(radius) + 2
    positions = np.arange(-reach, size + reach) + 0.5
    weights = np.maximum(0, 1 - np.abs(positions - centre[:, None]) / radius)
    within = (positions > 0) & (positions < size)
    share: NDArray[np.float64] = weights[:, within].sum(axis=1) / weights.sum(axis=1)
    return share.astype(np.float32)
