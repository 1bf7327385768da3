"""What the torch engines do to pixels, from a table's numbers on the device.

Written for `torch.compile`: shapes and passes are fixed by the table's layout, so a spec needs one compilation for each
size of batch. Fetching pixels from their places, and colour and noise, are one pass each over the whole batch; on a GPU
they are kernels of their own (passes_triton). Between them is blur: two batched matrix products (a Gaussian with
repeated border is a band matrix, any sigma costs the same). Then JPEG: the 8x8 cosine transform as one matrix product,
with libjpeg's tables, chroma at half size as encoders do by default. Both run on the rows that need them, gathered into
a block whose size the spec's probabilities give, so it stays the same; whatever comes next reads each row from where it
lies. Between the passes a pixel takes two bytes, and from colour on one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.augment.jpeg_torch import cosine_transform, jpeg_marks, quantisation_steps
from inkmill.data.augment.random_numbers import NOISE_RING, NOISE_UNIT, noise_ring
from inkmill.data.augment.table import LUMA, Layout

try:  # it comes with torch where there are GPUs, except on Windows
    from inkmill.data.augment import passes_triton
except ImportError:
    passes_triton = None  # type: ignore[assignment]

Constants = tuple[Tensor, Tensor, Tensor]


def change_images(
    images: Tensor,
    index: Tensor,
    values: Tensor,
    blur_rows: Tensor | None,
    jpeg_rows: Tensor | None,
    constants: Constants,
    layout: Layout,
) -> Tensor:
    """Apply a table's numbers.

    Args:
        images: uint8 (N, H, W, C).
        index: int64 (B,), which of the images are the batch; they are fetched where they lie.
        values: float32 (B, layout.size).
        blur_rows, jpeg_rows: int64, the rows of the batch to blur and to compress; None for all.
        constants: `constants_on` the images' device.
        layout: what the columns are.

    Returns:
        uint8 (B, H, W, C).
    """
    columns, (ring, transform, steps) = layout.columns, constants
    values = values.contiguous()
    kernels = passes_triton if images.is_cuda else None
    warp, shade = (kernels.warp, kernels.shade) if kernels else (_warp, _shade)
    pixels = warp(images, index, values, layout) if "space" in columns or "waves" in columns else images[index]
    blurred, place = None, None
    if "blur" in columns:
        pixels = pixels.to(torch.float16 if images.is_cuda else torch.float32)
        sigmas = values[:, columns["blur"]][:, 0]
        blurred, place = _on_rows(pixels, blur_rows, sigmas, lambda p, sigma: _blur(p, sigma, layout.blur_radius))
    if pixels.dtype != torch.uint8 or "colour" in columns or "noise" in columns:
        pixels = shade(pixels, blurred, place, values, ring, layout)
    if "jpeg" in columns:
        qualities = values[:, columns["jpeg"]][:, 0]
        changed = _on_rows(pixels, jpeg_rows, qualities, lambda p, quality: _jpeg(p, quality, transform, steps))
        pixels = _merged(pixels, *changed)
    for number in range(layout.cutouts):
        pixels = _cutout(pixels, values[:, columns["cutouts"]].reshape(-1, layout.cutouts, 5)[:, number])
    return pixels


@lru_cache(maxsize=8)
def constants_on(device: torch.device) -> Constants:
    """Return what the passes read on a device: the ring of noise, JPEG's cosine transform and quantisation steps."""
    return (
        torch.from_numpy(noise_ring().copy()).to(device),
        cosine_transform().to(device),
        quantisation_steps().to(device),
    )


def block_size(count: int, share: float) -> int:
    """Return how many of `count` rows get an expensive pass: nearly always enough (4 sigma), and the same each time.

    Another number would be another compilation.
    """
    likely = count * share + 4 * math.sqrt(count * share * (1 - share))
    return min(count, 32 * math.ceil(likely / 32))


def block_of(needed: NDArray[np.bool_], size: int) -> NDArray[np.int64] | None:
    """Return `size` rows with all the needed ones among them, or None where these are all rows."""
    if size >= len(needed):
        return None
    rows = np.flatnonzero(needed)
    return np.concatenate([rows, np.flatnonzero(~needed)[: size - len(rows)]])


def _on_rows(
    pixels: Tensor, rows: Tensor | None, numbers: Tensor, change: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Change some rows, all for None; return them, and for each row of the batch where it lies in them (-1: nowhere).

    Where all are changed, or none, that is None. They are not put back: whatever comes next reads each from its place.
    """
    if rows is None:
        return change(pixels, numbers), None
    if not len(rows):
        return None, None
    place = torch.full((len(pixels),), -1, device=pixels.device)
    place = place.index_copy(0, rows, torch.arange(len(rows), device=pixels.device))
    return change(pixels[rows], numbers[rows]), place


def _merged(pixels: Tensor, changed: Tensor | None, place: Tensor | None) -> Tensor:
    if changed is None or place is None:
        return pixels if changed is None else changed
    return torch.where((place >= 0)[:, None, None, None], changed[place.clamp(min=0)], pixels)


def _warp(images: Tensor, index: Tensor, values: Tensor, layout: Layout) -> Tensor:
    """Fetch each output pixel from its place in the input, bilinear, borders repeated; float32 BHWC."""
    batch, columns, (height, width) = len(index), layout.columns, images.shape[1:3]
    x = torch.arange(width, device=images.device, dtype=torch.float32)[None, None, :].expand(batch, height, width)
    y = torch.arange(height, device=images.device, dtype=torch.float32)[None, :, None].expand(batch, height, width)
    if "waves" in columns:
        numbers = values[:, columns["waves"]].reshape(batch, layout.waves, 5, 1, 1)
        moved_x, moved_y = x, y
        for k in range(layout.waves):
            way_x, way_y, frequency_x, frequency_y, phase = numbers[:, k].unbind(1)
            swing = torch.sin(frequency_x * x + frequency_y * y + phase)
            moved_x, moved_y = moved_x + way_x * swing, moved_y + way_y * swing
        x, y = moved_x, moved_y
    if "space" in columns:
        m = values[:, columns["space"]].reshape(batch, 9, 1, 1).unbind(1)
        depth = m[6] * x + m[7] * y + m[8]
        x, y = (m[0] * x + m[1] * y + m[2]) / depth, (m[3] * x + m[4] * y + m[5]) / depth
    source_x, source_y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    left, top = source_x.floor(), source_y.floor()
    right_share, low_share = (source_x - left)[..., None], (source_y - top)[..., None]
    x0, y0 = left.int(), top.int()
    x1, y1 = (x0 + 1).clamp(max=width - 1), (y0 + 1).clamp(max=height - 1)
    row = index[:, None, None]
    upper = torch.lerp(images[row, y0, x0].float(), images[row, y0, x1].float(), right_share)
    lower = torch.lerp(images[row, y1, x0].float(), images[row, y1, x1].float(), right_share)
    return torch.lerp(upper, lower, low_share)


def _blur(pixels: Tensor, sigma: Tensor, radius: int) -> Tensor:
    batch, height, width, channels = pixels.shape
    across = _band_matrix(sigma, width, radius).to(pixels.dtype)
    down = _band_matrix(sigma, height, radius).to(pixels.dtype)
    sideways = pixels.permute(0, 2, 1, 3).reshape(batch, width, height * channels)
    sideways = torch.bmm(across, sideways).reshape(batch, width, height, channels)
    upright = sideways.permute(0, 2, 1, 3).reshape(batch, height, width * channels)
    return torch.bmm(down, upright).reshape(batch, height, width, channels)


def _band_matrix(sigma: Tensor, size: int, radius: int) -> Tensor:
    """Return (B, size, size): each row's Gaussian, cut at 3 sigma, weights beyond the border given to its pixel."""
    output = torch.arange(size, device=sigma.device, dtype=torch.float32)[None, :, None]
    source = torch.arange(-radius, size + radius, device=sigma.device, dtype=torch.float32)[None, None, :]
    distance = output - source
    reach = torch.ceil(3 * sigma)[:, None, None]
    weights = torch.exp(-0.5 * (distance / sigma.clamp(min=1e-3)[:, None, None]) ** 2) * (distance.abs() <= reach)
    weights = weights / weights.sum(dim=2, keepdim=True)
    inner = weights[:, :, radius : radius + size]
    first = torch.nn.functional.pad(weights[:, :, :radius].sum(dim=2, keepdim=True), (0, size - 1))
    last = torch.nn.functional.pad(weights[:, :, radius + size :].sum(dim=2, keepdim=True), (size - 1, 0))
    return inner + first + last


def _shade(
    pixels: Tensor, blurred: Tensor | None, place: Tensor | None, values: Tensor, ring: Tensor, layout: Layout
) -> Tensor:
    """Apply colour and noise, and round; see passes_triton.shade."""
    columns, pixels = layout.columns, _merged(pixels, blurred, place).float()
    if "colour" in columns:
        pixels = _colour(pixels, values[:, columns["colour"]]).clamp(0, 255)
    if "noise" in columns:
        pixels = _noise(pixels, values[:, columns["noise"]], ring)
    return pixels.clamp(0, 255).round().to(torch.uint8)


def _colour(pixels: Tensor, colour: Tensor) -> Tensor:
    if pixels.shape[3] == 1:  # see table.gray_gain
        m = colour.reshape(-1, 12, 1, 1, 1).unbind(1)
        factor = sum(float(LUMA[c]) * (m[4 * c] + m[4 * c + 1] + m[4 * c + 2]) for c in range(3))
        return pixels * factor + sum(float(LUMA[c]) * m[4 * c + 3] for c in range(3))
    m = colour.reshape(-1, 12, 1, 1).unbind(1)
    red, green, blue = pixels.unbind(3)
    return torch.stack(
        [m[4 * c] * red + m[4 * c + 1] * green + m[4 * c + 2] * blue + m[4 * c + 3] for c in range(3)], dim=3
    )


def _noise(pixels: Tensor, noise: Tensor, ring: Tensor) -> Tensor:
    height, width, channels = pixels.shape[1:]
    count = height * width * channels
    offsets = torch.arange(count, device=pixels.device, dtype=torch.int32).reshape(height, width, channels)
    places = (noise[:, 1].int()[:, None, None, None] + offsets) & (NOISE_RING - 1)  # a power of two: no division
    return pixels + ring[places].float() * (noise[:, 0] / NOISE_UNIT)[:, None, None, None]


def _cutout(pixels: Tensor, rectangle: Tensor) -> Tensor:
    left, top, right, bottom, shade = rectangle[:, :, None, None].unbind(1)
    x = torch.arange(pixels.shape[2], device=pixels.device)[None, None, :]
    y = torch.arange(pixels.shape[1], device=pixels.device)[None, :, None]
    inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
    return torch.where(inside[..., None], shade[..., None].round().to(torch.uint8), pixels)


def _jpeg(pixels: Tensor, quality: Tensor, transform: Tensor, steps: Tensor) -> Tensor:
    marked = jpeg_marks(pixels.float(), quality, transform, steps).round().to(torch.uint8)
    return torch.where((quality > 0)[:, None, None, None], marked, pixels)
