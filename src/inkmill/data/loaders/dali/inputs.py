"""The inputs of DALI's graph for a batch: encoded images, the sizes to resize them to, the numbers that augment them.

Each argument of an operator has an input of its own. Which inputs there are depends on the plan alone, so that one
graph serves all batches. Nearly all are arrays with the batch first: DALI takes such an array at once, and a list of
arrays one by one, at some microseconds each. An input of a few numbers costs 0.1 us a sample where cutting the same
numbers out of a wide one in the graph costs 0.3: hence many narrow inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.cpu import light_gains, line_kernels, source_places
from inkmill.data.augment.params import AugmentParams, Floats, gray_gain
from inkmill.data.augment.random_numbers import NOISE_UNIT
from inkmill.data.pipeline.decode import MAX_PIXELS
from inkmill.data.pipeline.image_header import ImageHeader
from inkmill.data.pipeline.resize import Resize

Inputs = dict[str, Any]
"""Inputs of the graph by name: arrays with the batch first, or lists of one array a sample."""
Sizes = NDArray[np.int32]
"""(B, 3): rows and columns of each decoded image, and how many columns of the model's input it fills."""

HALVINGS = 3
"""How often the graph can halve an image before it resizes; one that shrinks over 16 times is resized by inkmill."""

_MAX_SHRINK = 2 ** (HALVINGS + 1)
_JPEG_END = b"\xff\xd9"
_PNG_TYPES_WITHOUT_ALPHA = (0, 2, 3)
_IDENTITY = np.eye(3, dtype=np.float32)
_NOT_WAVED = np.zeros((1, 1), np.float32)


def dali_decodes(data: bytes, header: ImageHeader, resize: Resize) -> bool:
    """Return whether DALI gives the same pixels as `inkmill.data.pipeline.decode`; the others are decoded by inkmill.

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
    return header.format == "PNG" and _is_opaque_png(data)


def _is_opaque_png(data: bytes) -> bool:
    pixels = data.find(b"IDAT", 33)
    return data[25] in _PNG_TYPES_WITHOUT_ALPHA and pixels >= 0 and data.find(b"tRNS", 33, pixels) < 0


def netpbm(image: NDArray[np.uint8]) -> bytes:
    """Return an image, uint8 (h, w, C), as a PPM or PGM file: how decoded pixels go through DALI's decoder."""
    height, width, channels = image.shape
    return b"P%d\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height) + image.tobytes()


def padded_files(images: list[bytes]) -> Any:
    """Return encoded images as uint8 (B, longest), or as a list of arrays where padding would waste memory.

    DALI takes one array in a fifth of the time of a list, and decoders stop at the end of the image: the zeros that
    follow are not read.
    """
    longest = max(map(len, images))
    if longest * len(images) > 4 * sum(map(len, images)) + 2**24:
        return [np.frombuffer(image, np.uint8) for image in images]
    return np.frombuffer(b"".join(image.ljust(longest, b"\0") for image in images), np.uint8).reshape(-1, longest)


def resize_inputs(sizes: Sizes, resize: Resize, width: int) -> Inputs:
    """Return the inputs that resize a batch: through the same sizes as `inkmill.data.pipeline.resize.resize`.

    "halving_sizes" has three numbers a halving: rows, columns, and whether the image takes this step. The matrices of
    those steps, one below the other, and of the last map the result's pixels to the image's, corners at whole numbers.

    Args:
        sizes: of the decoded images.
        resize: how they are resized.
        width: columns of the batch, padding included.
    """
    count, size = len(sizes), sizes[:, :2]
    valid = np.stack([np.full_like(sizes[:, 2], resize.height), sizes[:, 2]], axis=1)
    steps, matrices = np.zeros((count, HALVINGS, 3), np.float32), np.zeros((count, HALVINGS, 3, 3), np.float32)
    for step in range(HALVINGS):
        too_large = size > 2 * valid
        smaller = np.where(too_large, -(-size // 2), size)
        steps[:, step, :2], steps[:, step, 2] = smaller, np.any(too_large, axis=1)
        matrices[:, step] = _scaling(size, smaller)
        size = smaller
    inputs: Inputs = {
        "halved": steps[:, 0, 2] > 0,
        "halving_sizes": steps.reshape(count, -1),
        "halving_matrices": matrices.reshape(count, -1, 3),
        "resize_matrix": _scaling(size, valid),
    }
    if resize.mode != "stretch":
        inputs["valid_size"] = valid.astype(np.float32)
        inputs["padded"] = valid[:, 1] < width
        inputs["padded_size"] = np.tile(np.array([resize.height, width], np.float32), (count, 1))
    return inputs


def _scaling(size: Sizes, goal: Sizes) -> NDArray[np.float32]:
    """Return (B, 3, 3): where in an image of `size`, (rows, columns), lies what is shown in one of size `goal`."""
    matrix = np.zeros((len(size), 3, 3), np.float32)
    matrix[:, 0, 0], matrix[:, 1, 1], matrix[:, 2, 2] = size[:, 1] / goal[:, 1], size[:, 0] / goal[:, 0], 1
    return matrix


def augment_inputs(params: AugmentParams, channels: int) -> Inputs:
    """Return the inputs that augment a batch.

    Args:
        params: of B images.
        channels: of the images: 1 or 3.
    """
    inputs: Inputs = {}
    if (shrink := params.part("shrink")) is not None:
        inputs["shrunk"] = shrink[:, 0] > 0
        inputs["shrink"] = np.ascontiguousarray(shrink)
    if params.layout.space or params.layout.waves:
        inputs |= _warp_inputs(params)
    if (motion := params.part("motion")) is not None:
        inputs["moving"] = motion[:, 0] > 0
        inputs["motion_kernel"] = line_kernels(motion[:, 0], motion[:, 1], params.layout.motion_radius)
    if (light := params.part("light")) is not None:
        inputs["lit"] = (light != 0).any(axis=1)
        inputs["light_gain"] = light_gains(light, params.height, params.width)
    if (sigma := params.part("blur")) is not None:
        inputs["blurred"] = sigma[:, 0] > 0
        inputs["blur_kernel"] = _gaussians(sigma[:, 0])
    if (colour := params.colour) is not None:
        inputs["coloured"] = ~np.isclose(colour, np.eye(3, 4)).all(axis=(1, 2))
        matrix = colour if channels == 3 else gray_gain(colour)[:, None, :]
        inputs["colour_matrix"] = np.ascontiguousarray(matrix[:, :, :-1])
        inputs["colour_offset"] = np.ascontiguousarray(matrix[:, :, -1])
    if (noise := params.part("noise")) is not None:
        shape = np.array([params.height, params.width, channels], np.int32)
        inputs["noisy"] = noise[:, 0] > 0
        inputs["noise_scale"] = noise[:, 0] / np.float32(NOISE_UNIT)
        inputs["noise_start"] = noise[:, 1:].astype(np.int32)
        inputs["noise_shape"] = np.tile(shape, (len(params), 1))
        inputs["noise_size"] = np.full((len(params), 1), shape.prod(), np.int32)
    if (quality := params.part("jpeg")) is not None:
        inputs["compressed"] = quality[:, 0] > 0
        inputs["jpeg_quality"] = quality[:, 0].astype(np.int32)
    if (cutouts := params.cutouts) is not None:
        inputs |= _cutout_inputs(cutouts)
    return inputs


def _warp_inputs(params: AugmentParams) -> Inputs:
    space = params.space if params.space is not None else np.tile(_IDENTITY, (len(params), 1, 1))
    inputs = {"moved": (space != _IDENTITY).any(axis=(1, 2)), "warp_matrix": np.ascontiguousarray(space)}
    if (waves := params.waves) is not None:
        waved = (waves[:, :, :2] != 0).any(axis=(1, 2))
        source_x, source_y = [_NOT_WAVED] * len(params), [_NOT_WAVED] * len(params)
        for row in np.flatnonzero(waved).tolist():
            x, y = source_places(space[row], waves[row], params.height, params.width)
            # DALI's remap on a GPU has no border to repeat: what lies outside is moved onto the border.
            source_x[row] = np.clip(x, 0, params.width - 1, out=x)
            source_y[row] = np.clip(y, 0, params.height - 1, out=y)
        inputs |= {"waved": waved, "source_x": source_x, "source_y": source_y}
    return inputs


def _gaussians(sigma: Floats) -> Floats:
    """Return one kernel a row, float32 (B, K, K), K what the strongest blur needs; a sigma of 0 leaves one 1."""
    radius = np.ceil(3 * sigma)
    distance = np.arange(-radius.max(initial=0), radius.max(initial=0) + 1)
    weights = np.exp(-(distance**2) / (2 * np.maximum(sigma, 1e-3)[:, None] ** 2))
    weights *= np.abs(distance) <= radius[:, None]
    weights /= weights.sum(axis=1, keepdims=True)
    kernels: Floats = (weights[:, :, None] * weights[:, None, :]).astype(np.float32)
    return kernels


def _cutout_inputs(cutouts: Floats) -> Inputs:
    """Return which rows are cut, and six numbers a rectangle: x, y, width, height, shade, whether another follows.

    A row's rectangles with an area come first, in their order: so each condition of the graph lies inside the one
    before.
    """
    has_area = (cutouts[:, :, 2:4] > cutouts[:, :, :2]).all(axis=2)
    first = np.argsort(~has_area, axis=1, kind="stable")
    has_area = np.take_along_axis(has_area, first, axis=1)
    cutouts = np.take_along_axis(cutouts, first[:, :, None], axis=1)
    rectangles = np.zeros((*has_area.shape, 6), np.float32)
    rectangles[:, :, :2] = cutouts[:, :, :2]
    rectangles[:, :, 2:4] = cutouts[:, :, 2:4] - cutouts[:, :, :2]
    rectangles[:, :, 4] = np.rint(cutouts[:, :, 4])
    rectangles[:, :-1, 5] = has_area[:, 1:]
    return {"cut": has_area[:, 0].copy(), "rectangles": rectangles.reshape(len(cutouts), -1)}
