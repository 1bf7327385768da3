"""Passes in torch that lose detail: resolution, by making an image smaller and larger again, and motion.

Resizing is linear and the same for every row and every column, so a whole batch is resized by two products of matrices,
each image with filters and a size of its own. The sizes in between differ from image to image: the matrices are all as
large as the image, with zeros where the smaller one ends. So a spec needs one compilation.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_NEAREST, _LINEAR, _CUBIC, _AREA = range(4)  # see params.FILTERS
_A = -0.75  # of the cubic filter, as OpenCV has it


def shrink(pixels: Tensor, rows: Tensor | None, values: Tensor, column: int) -> Tensor:
    """Make some images smaller and as large again, as OpenCV does; whole shades in between, too.

    Args:
        pixels: uint8 (B, H, W, C).
        rows: int64 (n,), which images; None for all.
        values: float32 (B, columns).
        column: where the factor and the two filters are; a factor of 0 changes nothing.

    Returns:
        uint8 (n, H, W, C).
    """
    numbers = values[:, column : column + 3]
    if rows is not None:
        pixels, numbers = pixels[rows], numbers[rows]
    factor, smaller, larger = numbers.unbind(1)
    nothing = factor <= 0
    factor = torch.where(nothing, 1.0, factor)
    dtype = torch.float16 if pixels.is_cuda else torch.float32
    height, width = pixels.shape[1:3]
    sides = [(side, torch.round(factor * side).clamp(min=1)) for side in (height, width)]
    down, across = (_resizing(side, side + 0 * small, small, smaller).to(dtype) for side, small in sides)
    reduced = _both_ways(pixels.to(dtype), down, across)
    down, across = (_resizing(side, small, side + 0 * small, larger).to(dtype) for side, small in sides)
    return torch.where(nothing[:, None, None, None], pixels, _both_ways(reduced, down, across).to(torch.uint8))


def _both_ways(pixels: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Return D image A^T for each image, rounded to whole shades: (n, H, W, C), (n, H, H) and (n, W, W)."""
    batch, height, width, channels = pixels.shape
    upright = torch.bmm(down, pixels.reshape(batch, height, width * channels))
    sideways = upright.reshape(batch, height, width, channels).permute(0, 2, 1, 3).reshape(batch, width, -1)
    out = torch.bmm(across, sideways).reshape(batch, width, height, channels).permute(0, 2, 1, 3)
    return out.round().clamp(0, 255)


def _resizing(side: int, before: Tensor, after: Tensor, kind: Tensor) -> Tensor:
    """Return the matrices that resize along one axis, float32 (n, side, side), zero beyond the sizes.

    Args:
        side: the largest size.
        before, after: (n,), sizes of the axis, at most `side`.
        kind: (n,), filter.
    """
    place = torch.arange(side, device=before.device, dtype=torch.float32)
    scale, kind = (before / after)[:, None], kind[:, None]
    # (n, side), where each new pixel comes from.
    source = torch.where(kind == _NEAREST, _nearest(place, before, after), (place + 0.5) * scale - 0.5)
    # 1. Filters of up to four places around the source; what lies beyond the border falls on it.
    first = torch.floor(source)
    taps = torch.arange(-1, 3, device=before.device, dtype=torch.float32)
    far = (source - first)[:, :, None] - taps
    cubic = (kind == _CUBIC)[:, :, None]
    weights = torch.where(cubic, _cubic(far), (1 - far.abs()).clamp(min=0))
    to = torch.minimum((first[:, :, None] + taps).clamp(min=0), before[:, None, None] - 1)
    matrix = torch.zeros(len(before), side, side, device=before.device)
    matrix = matrix.scatter_add(2, to.long(), weights)
    # 2. The mean over the area of a new pixel.
    left, right = (place * scale)[:, :, None], ((place + 1) * scale)[:, :, None]
    shared = (torch.minimum(right, place + 1) - torch.maximum(left, place)).clamp(min=0) / scale[:, :, None]
    matrix = torch.where((kind == _AREA)[:, :, None], shared, matrix)
    return matrix * (place[:, None] < after[:, None, None])


def _nearest(place: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return the nearest places, (n, side), in whole numbers, for many lie right between two."""
    before, after = before.long()[:, None], after.long()[:, None]
    return ((2 * place.long() + 1) * before // (2 * after)).float()


def _cubic(far: Tensor) -> Tensor:
    """Return the weights of the cubic filter at a distance (Keys 1981)."""
    d = far.abs()
    near = ((_A + 2) * d - (_A + 3)) * d * d + 1
    return torch.where(d <= 1, near, torch.where(d < 2, ((d - 5) * d + 8) * d * _A - 4 * _A, 0.0))


def move(pixels: Tensor, rows: Tensor | None, values: Tensor, column: int, radius: int) -> Tensor:
    """Blur some images along a line; kernels as of `cpu.line_kernels`, borders repeated.

    Args:
        pixels: floats (B, H, W, C).
        rows: int64 (n,), which images; None for all.
        values: float32 (B, columns).
        column: where length and direction are; a length of 0 changes nothing.
        radius: half the longest length, in whole pixels.

    Returns:
        Floats (n, H, W, C) of the same dtype.
    """
    numbers = values[:, column : column + 2]
    if rows is not None:
        pixels, numbers = pixels[rows], numbers[rows]
    batch, height, width, channels = pixels.shape
    length, angle = numbers.unbind(1)
    place = torch.arange(-radius, radius + 1, device=pixels.device, dtype=torch.float32)
    along = torch.linspace(-0.5, 0.5, 2 * radius + 1, device=pixels.device)[:, None] * length
    across, down = (
        (1 - (place - (along * direction)[:, :, None]).abs()).clamp(min=0)
        for direction in (torch.cos(angle), torch.sin(angle))
    )
    kernels = torch.einsum("pby,pbx->byx", down, across) / len(along)
    # One convolution with a group for each channel of each image.
    planes = pixels.permute(0, 3, 1, 2).reshape(1, batch * channels, height, width)
    planes = functional.pad(planes.float(), (radius,) * 4, mode="replicate").to(pixels.dtype)
    weights = kernels.repeat_interleave(channels, dim=0)[:, None].to(pixels.dtype)
    moved = functional.conv2d(planes, weights, groups=batch * channels)
    return moved.reshape(batch, channels, height, width).permute(0, 2, 3, 1)
