"""How DALI follows `inkmill.data.fit`: which encoded images it may decode, and the numbers that make its resize ours.

DALI's antialiased resize is the same triangle filter with one difference: beyond the border it repeats the outermost
pixel, where inkmill leaves out what is not there and lets the rest weigh more. On real crops that alone makes up to 24
of 255 in the outermost rows and columns. So an image that shrinks is pasted onto a black canvas with a margin, resized
from the part that it covers, and divided by the share of the filter that fell inside. What is left is rounding: 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.dali_columns import Columns
from inkmill.data.decode import MAX_PIXELS
from inkmill.data.fit import Fit
from inkmill.data.image_header import ImageHeader

_MAX_SHRINK = 16  # beyond this `fit` shrinks with a box first
_JPEG_END = b"\xff\xd9"
_PNG_TYPES_WITHOUT_ALPHA = (0, 2, 3)
_WHOLE = np.ones((1, 1, 1), np.float32)


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


def netpbm(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image as a PPM or PGM file: how pixels that were decoded here go through DALI's decoder."""
    height, width, channels = image.shape
    head = b"P%d\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height)
    return np.concatenate([np.frombuffer(head, np.uint8), image.reshape(-1)])


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
    rows = list(zip(sizes, np.asarray(shrunk).tolist(), strict=True))
    columns: Columns = {
        "valid": valid.astype(np.float32),
        "shrunk": shrunk,
        "canvas": decoded + 2 * margin,
        "margin": margin[:, None, :],
        "first": margin.astype(np.float32),
        "last": (margin + decoded).astype(np.float32),
        "inside_y": [_inside(size.height, fit.height)[:, None, None] if less else _WHOLE for size, less in rows],
        "inside_x": [_inside(size.width, size.valid_width)[None, :, None] if less else _WHOLE for size, less in rows],
    }
    if fit.mode != "stretch":
        columns["padded"] = valid[:, 1] < width
        columns["full"] = np.tile(np.array([fit.height, width], np.float32), (len(sizes), 1))
    return columns


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
