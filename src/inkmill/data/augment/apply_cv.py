"""The OpenCV engine: applies a table on the CPU, row by row.

Each row depends on its own numbers alone, and a row or a part without change costs nothing. One core does the strong
scene-text preset on 32x128x3 at some ten thousand images a second; that is what worker processes are for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import NOISE_RING, NOISE_UNIT, noise_ring
from inkmill.data.augment.table import AugmentParams, Floats, gray_gain

Images = NDArray[np.uint8]
Step = tuple[Any, Callable[[Images, int], Images]]


def apply_cv(images: Images, table: AugmentParams) -> Images:
    """Apply a table to a batch.

    Args:
        images: uint8 (B, H, W, C), RGB or gray; not changed.
        table: what was drawn for this batch and size.

    Returns:
        uint8 (B, H, W, C).

    Raises:
        ValueError: batch and table do not belong together.
    """
    expected = (len(table), table.height, table.width)
    if images.shape[:3] != expected:
        raise ValueError(f"the table was drawn for a batch of {expected}, the images are {images.shape}")
    steps = _steps(table, images.shape[3])
    out = images.copy()
    for needed, step in steps:
        for row in np.flatnonzero(needed).tolist():
            out[row] = step(out[row], row).reshape(out[row].shape)
    return out


def _steps(table: AugmentParams, channels: int) -> list[Step]:
    """Return the passes in their order: which rows need one, and what it does to a row."""
    steps: list[Step] = []
    if table.space is not None or table.waves is not None:
        steps.append(_warp(table))
    if (sigma := table.part("blur")) is not None:
        steps.append((sigma[:, 0] > 0, _blur(sigma[:, 0])))
    if (colour := table.colour) is not None:
        steps.append((~np.isclose(colour, np.eye(3, 4)).all(axis=(1, 2)), _colour(colour, channels)))
    if (noise := table.part("noise")) is not None:
        steps.append((noise[:, 0] > 0, _noise(noise)))
    if (quality := table.part("jpeg")) is not None:
        steps.append((quality[:, 0] > 0, _jpeg(quality[:, 0])))
    if (cutouts := table.cutouts) is not None:
        has_area = (cutouts[:, :, 2] > cutouts[:, :, 0]) & (cutouts[:, :, 3] > cutouts[:, :, 1])
        steps.append((has_area.any(axis=1), _cutout(cutouts)))
    return steps


def _warp(table: AugmentParams) -> Step:
    size = (table.width, table.height)
    space = table.space if table.space is not None else np.tile(np.eye(3, dtype=np.float32), (len(table), 1, 1))
    flat = (space[:, 2] == (0, 0, 1)).all(axis=1)
    moved = (space != np.eye(3, dtype=np.float32)).any(axis=(1, 2))
    waves = table.waves
    waved = np.zeros(len(table), bool) if waves is None else (waves[:, :, :2] != 0).any(axis=(1, 2))
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP

    def warp(image: Images, row: int) -> Images:
        if waves is not None and waved[row]:
            x, y = _source_places(space[row], waves[row], table.height, table.width)
            return cast(Images, cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
        if flat[row]:
            return cast(
                Images, cv2.warpAffine(image, space[row, :2], size, flags=flags, borderMode=cv2.BORDER_REPLICATE)
            )
        return cast(Images, cv2.warpPerspective(image, space[row], size, flags=flags, borderMode=cv2.BORDER_REPLICATE))

    return moved | waved, warp


def _source_places(matrix: Floats, waves: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """Return where each output pixel comes from: x and y, float32 (H, W)."""
    across, down = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)
    way_x, way_y, frequency_x, frequency_y, phase = waves[(waves[:, :2] != 0).any(axis=1)].T[:, :, None]
    # sin(a + b) = sin a cos b + cos a sin b: sines along the two edges, and a product of matrices for the sum
    a, b = frequency_x * across + phase, frequency_y * down
    edges = np.concatenate([np.cos(b), np.sin(b)]).T
    swing_a = np.concatenate([np.sin(a), np.cos(a)])
    x = across + edges @ (np.concatenate([way_x, way_x]) * swing_a)
    y = down[:, None] + edges @ (np.concatenate([way_y, way_y]) * swing_a)
    deep = matrix[2, 0] * x + matrix[2, 1] * y + matrix[2, 2]
    source_x = (matrix[0, 0] * x + matrix[0, 1] * y + matrix[0, 2]) / deep
    source_y = (matrix[1, 0] * x + matrix[1, 1] * y + matrix[1, 2]) / deep
    return source_x, source_y


def _blur(sigma: Floats) -> Callable[[Images, int], Images]:
    def blur(image: Images, row: int) -> Images:
        side = 2 * math.ceil(3 * sigma[row]) + 1
        return cast(Images, cv2.GaussianBlur(image, (side, side), float(sigma[row]), borderType=cv2.BORDER_REPLICATE))

    return blur


def _colour(colour: Floats, channels: int) -> Callable[[Images, int], Images]:
    matrices = colour if channels == 3 else gray_gain(colour)[:, None, :]
    return lambda image, row: cast(Images, cv2.transform(image, matrices[row]))


def _noise(noise: Floats) -> Callable[[Images, int], Images]:
    ring = noise_ring()

    def add(image: Images, row: int) -> Images:
        place = int(noise[row, 1])
        stretch = ring[place : place + image.size]
        if len(stretch) < image.size:
            stretch = ring[np.arange(place, place + image.size) % NOISE_RING]
        numbers = stretch.reshape(image.shape) * np.float32(noise[row, 0] / NOISE_UNIT)
        return cast(Images, cv2.add(image.reshape(numbers.shape), numbers, dtype=cv2.CV_8U))

    return add


def _jpeg(quality: Floats) -> Callable[[Images, int], Images]:
    def compress(image: Images, row: int) -> Images:
        options = [cv2.IMWRITE_JPEG_QUALITY, int(quality[row])]
        if image.shape[2] == 1:
            return cast(Images, cv2.imdecode(cv2.imencode(".jpg", image, options)[1], cv2.IMREAD_GRAYSCALE))
        data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)[1]
        back = cast(Images, cv2.imdecode(data, cv2.IMREAD_COLOR))
        return cast(Images, cv2.cvtColor(back, cv2.COLOR_BGR2RGB))

    return compress


def _cutout(cutouts: Floats) -> Callable[[Images, int], Images]:
    def paint(image: Images, row: int) -> Images:
        for left, top, right, bottom, shade in cutouts[row]:
            image[int(top) : int(bottom), int(left) : int(right)] = round(float(shade))
        return image

    return paint
