"""The warp of parts of larger pictures: one pass from a kept picture to what the model sees of it, on the CPU.

Beside the warp of whole inputs (see `cpu`), pictures and output differ in size, what lies outside of the picture is
black, and where the output shows more than two of the picture's pixels in one, the mean of several places is taken: as
`pipeline.resize` has it, each place looks at two pixels a side, so none is skipped down to an eighth of the size.
"""

from __future__ import annotations

from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Image = NDArray[np.uint8]

MOST_PLACES = 4
"""Places a side whose mean a pixel is, at most."""
_PIXELS_OF_PLACE = 2.0
_NEARLY = 1e-3


def places_a_side(matrices: Floats, height: int, width: int) -> NDArray[np.int64]:
    """Return how many places a side each output's pixels are the mean of: int64 (B,), 1 to `MOST_PLACES`.

    Args:
        matrices: (B, 3, 3), from the output's pixels to the picture's.
        height, width: of the output.
    """
    m = np.asarray(matrices, np.float64)
    w = np.abs(m[:, 2, 0] * (width - 1) / 2 + m[:, 2, 1] * (height - 1) / 2 + m[:, 2, 2])
    pixels = np.sqrt(np.abs(np.linalg.det(m)) / np.maximum(w, 1e-6) ** 3)  # of the picture, a side, in the middle
    wanted = np.ceil(pixels / _PIXELS_OF_PLACE - _NEARLY)
    return cast("NDArray[np.int64]", np.clip(wanted, 1, MOST_PLACES).astype(np.int64))


def warp_page(page: Image, matrix: Floats, places: int, out: Image) -> None:
    """Fetch each pixel of the output from its place in the picture, bilinear; black outside of it.

    Args:
        page: uint8 (h, w, C).
        matrix: (3, 3), from the output's pixels to the picture's.
        places: of `places_a_side`.
        out: uint8 (H, W, C), written.
    """
    height, width, channels = out.shape
    # Between the output's pixels lie places x places finer ones, whose means these are.
    finer = np.array([[1 / places, 0, (1 / places - 1) / 2], [0, 1 / places, (1 / places - 1) / 2], [0, 0, 1]])
    backwards = np.asarray(matrix, np.float64) @ finer
    size = (places * width, places * height)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    if (backwards[2] == (0, 0, 1)).all():
        found = cv2.warpAffine(page, backwards[:2], size, flags=flags, borderMode=cv2.BORDER_CONSTANT)
    else:
        found = cv2.warpPerspective(page, backwards, size, flags=flags, borderMode=cv2.BORDER_CONSTANT)
    if places > 1:
        found = cv2.resize(found, (width, height), interpolation=cv2.INTER_AREA)
    out[...] = found.reshape(height, width, channels)


def to_input(space: Floats, resized: Floats) -> NDArray[np.float32]:
    """Return the matrices from the pixels of pictures to those of what the model sees: float32 (B, 3, 3).

    Args:
        space: (B, 3, 3), from the output's pixels to those of the kept pictures.
        resized: (B, 3, 3), from the pixels of the pictures to those of the kept ones.
    """
    return cast("NDArray[np.float32]", (np.linalg.inv(space.astype(np.float64)) @ resized).astype(np.float32))
