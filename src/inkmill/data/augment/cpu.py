"""The OpenCV engine: applies augmentation parameters on the CPU, image by image.

Each image depends on its own numbers alone, and a pass that an image does not need costs nothing. One core does the
strong scene-text preset on 32x128x3 at some ten thousand images a second; that is what worker processes are for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.params import FILTERS, AugmentParams, Floats, gray_gain
from inkmill.data.augment.random_numbers import NOISE_RING, NOISE_UNIT, noise_ring

Images = NDArray[np.uint8]
Step = tuple[Any, Callable[[Images, int], Images]]
"""Which images need a pass, bool (B,), and what it does to one image, given with its number in the batch."""


def apply_cv(images: Images, params: AugmentParams, warped: bool = False) -> Images:
    """Apply augmentation parameters to a batch.

    Args:
        images: uint8 (B, H, W, C), RGB or gray; not changed.
        params: sampled for this batch and size.
        warped: the warp was done already (see `page_warp`).

    Returns:
        uint8 (B, H, W, C).

    Raises:
        ValueError: batch and parameters do not belong together.
    """
    params.check_images(images.shape)
    out = images.copy()
    for name in params.layout.passes:
        if warped and name == "warp":
            continue
        needed, step = _PASSES[name](params, images.shape[3])
        for row in np.flatnonzero(needed).tolist():
            out[row] = step(out[row], row).reshape(out[row].shape)
    return out


def _shrink(params: AugmentParams, channels: int) -> Step:
    shrink = _required(params.part("shrink"))
    return shrink[:, 0] > 0, lambda image, row: shrink_one(image, shrink[row])


def shrink_one(image: Images, numbers: Floats) -> Images:
    """Make one image smaller and as large again, by the three numbers of `params`."""
    height, width = image.shape[:2]
    smaller, larger = numbers[1:].astype(int).tolist()
    rows, columns = np.maximum(np.rint(numbers[0] * np.array([height, width], np.float32)), 1).astype(int).tolist()
    small = _resized(image, columns, rows, smaller)
    return _resized(small, width, height, larger).reshape(image.shape)


def _resized(image: Images, width: int, height: int, kind: int) -> Images:
    """Resize an image by one of `params.FILTERS`."""
    if FILTERS[kind] == "nearest":  # OpenCV's own rounds places that lie right between two pixels to either side
        rows = (2 * np.arange(height) + 1) * image.shape[0] // (2 * height)
        columns = (2 * np.arange(width) + 1) * image.shape[1] // (2 * width)
        return cast(Images, image[rows[:, None], columns])
    flags = {"linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC, "area": cv2.INTER_AREA}
    return cast(Images, cv2.resize(image, (width, height), interpolation=flags[FILTERS[kind]]))


def _warp(params: AugmentParams, channels: int) -> Step:
    height, width = params.height, params.width
    unmoved = np.eye(3, dtype=np.float32)
    space = params.space if params.space is not None else np.tile(unmoved, (len(params), 1, 1))
    affine = (space[:, 2] == (0, 0, 1)).all(axis=1)
    moved = (space != unmoved).any(axis=(1, 2))
    waves = params.waves
    waved = np.zeros(len(params), bool) if waves is None else (waves[:, :, :2] != 0).any(axis=(1, 2))
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    border = cv2.BORDER_REPLICATE

    def warp(image: Images, row: int) -> Images:
        # The cheapest that does it: OpenCV's affine warp is faster than its perspective one, and that than a remap.
        if waves is not None and waved[row]:
            x, y = source_places(space[row], waves[row], height, width)
            return cast(Images, cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=border))
        if affine[row]:
            return cast(Images, cv2.warpAffine(image, space[row, :2], (width, height), flags=flags, borderMode=border))
        return cast(Images, cv2.warpPerspective(image, space[row], (width, height), flags=flags, borderMode=border))

    return moved | waved, warp


def source_places(matrix: Floats, waves: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """Return where each output pixel comes from: x and y, float32 (H, W)."""
    across, down = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)
    shift_x, shift_y, frequency_x, frequency_y, phase = waves[(waves[:, :2] != 0).any(axis=1)].T[:, :, None]
    # 1. The waves. sin(a + b) = sin a cos b + cos a sin b: sines along the two edges, and a matrix product for the sum.
    a, b = frequency_x * across + phase, frequency_y * down
    edges = np.concatenate([np.cos(b), np.sin(b)]).T
    sines = np.concatenate([np.sin(a), np.cos(a)])
    x = across + edges @ (np.concatenate([shift_x, shift_x]) * sines)
    y = down[:, None] + edges @ (np.concatenate([shift_y, shift_y]) * sines)
    # 2. The matrix, in homogeneous coordinates.
    w = matrix[2, 0] * x + matrix[2, 1] * y + matrix[2, 2]
    source_x = (matrix[0, 0] * x + matrix[0, 1] * y + matrix[0, 2]) / w
    source_y = (matrix[1, 0] * x + matrix[1, 1] * y + matrix[1, 2]) / w
    return source_x, source_y


def _motion(params: AugmentParams, channels: int) -> Step:
    motion = _required(params.part("motion"))
    kernels = line_kernels(motion[:, 0], motion[:, 1], params.layout.motion_radius)

    def move(image: Images, row: int) -> Images:
        return cast(Images, cv2.filter2D(image, -1, kernels[row], borderType=cv2.BORDER_REPLICATE))

    return motion[:, 0] > 0, move


def line_kernels(length: Floats, angle: Floats, radius: int) -> Floats:
    """Return the kernels of motion blurs, float32 (B, 2 radius + 1, 2 radius + 1): the mean of points along a line.

    Args:
        length: (B,), of the lines in pixels.
        angle: (B,), their directions in radians.
        radius: half the longest length, in whole pixels.
    """
    place = np.arange(-radius, radius + 1, dtype=np.float32)
    along = np.linspace(-0.5, 0.5, 2 * radius + 1, dtype=np.float32)[:, None] * length  # (points, B)
    # A point between pixels is shared among the four around it, by how near they are: a tent along each axis.
    across, down = (
        np.maximum(1 - np.abs(place - (along * direction)[:, :, None]), 0)
        for direction in (np.cos(angle), np.sin(angle))
    )
    return cast(Floats, np.einsum("pby,pbx->byx", down, across) / np.float32(len(along)))


def _light(params: AugmentParams, channels: int) -> Step:
    light = _required(params.part("light"))
    needed = (light != 0).any(axis=1)
    gains = light_gains(light, params.height, params.width)

    def lit(image: Images, row: int) -> Images:
        return cast(Images, cv2.multiply(image, np.repeat(gains[row], channels, axis=2), dtype=cv2.CV_8U))

    return needed, lit


def light_gains(light: Floats, height: int, width: int) -> Floats:
    """Return what the brightness of each pixel is multiplied by, float32 (B, height, width, 1)."""
    x, y = (((np.arange(side, dtype=np.float32) + 0.5) * 2 / side - 1) for side in (width, height))
    across, down = light[:, 0, None, None], light[:, 1, None, None]
    return cast(Floats, (1 + across * x + down * y[:, None])[..., None])


def _blur(params: AugmentParams, channels: int) -> Step:
    sigma = _required(params.part("blur"))[:, 0]

    def blur(image: Images, row: int) -> Images:
        side = 2 * math.ceil(3 * sigma[row]) + 1  # cut at 3 sigma, as in all engines
        return cast(Images, cv2.GaussianBlur(image, (side, side), float(sigma[row]), borderType=cv2.BORDER_REPLICATE))

    return sigma > 0, blur


def _colour(params: AugmentParams, channels: int) -> Step:
    colour = _required(params.colour)
    matrices = colour if channels == 3 else gray_gain(colour)[:, None, :]
    # Close, not equal: several ops that cancel out leave the identity with a rounding error.
    needed = ~np.isclose(colour, np.eye(3, 4)).all(axis=(1, 2))
    return needed, lambda image, row: cast(Images, cv2.transform(image, matrices[row]))


def _noise(params: AugmentParams, channels: int) -> Step:
    noise, ring = _required(params.part("noise")), noise_ring()

    def add(image: Images, row: int) -> Images:
        place = int(noise[row, 1])
        piece = ring[place : place + image.size]
        if len(piece) < image.size:  # it reaches over the end of the ring
            piece = ring[np.arange(place, place + image.size) % NOISE_RING]
        numbers = piece.reshape(image.shape) * np.float32(noise[row, 0] / NOISE_UNIT)
        return cast(Images, cv2.add(image.reshape(numbers.shape), numbers, dtype=cv2.CV_8U))

    return noise[:, 0] > 0, add


def _jpeg(params: AugmentParams, channels: int) -> Step:
    quality = _required(params.part("jpeg"))[:, 0]

    def compress(image: Images, row: int) -> Images:
        options = [cv2.IMWRITE_JPEG_QUALITY, int(quality[row])]
        # A real file in memory: OpenCV has no other way, and torch's imitation is tested against it.
        if channels == 1:
            return cast(Images, cv2.imdecode(cv2.imencode(".jpg", image, options)[1], cv2.IMREAD_GRAYSCALE))
        data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)[1]
        back = cast(Images, cv2.imdecode(data, cv2.IMREAD_COLOR))
        return cast(Images, cv2.cvtColor(back, cv2.COLOR_BGR2RGB))

    return quality > 0, compress


def _cutout(params: AugmentParams, channels: int) -> Step:
    cutouts = _required(params.cutouts)
    has_area = (cutouts[:, :, 2] > cutouts[:, :, 0]) & (cutouts[:, :, 3] > cutouts[:, :, 1])

    def paint(image: Images, row: int) -> Images:
        for left, top, right, bottom, shade in cutouts[row]:
            image[int(top) : int(bottom), int(left) : int(right)] = round(float(shade))
        return image

    return has_area.any(axis=1), paint


def _required(part: Floats | None) -> Floats:
    """Return a part that the layout has, for its pass runs."""
    assert part is not None
    return part


_PASSES: dict[str, Callable[[AugmentParams, int], Step]] = {
    "shrink": _shrink,
    "warp": _warp,
    "motion": _motion,
    "light": _light,
    "blur": _blur,
    "colour": _colour,
    "noise": _noise,
    "jpeg": _jpeg,
    "cutouts": _cutout,
}
