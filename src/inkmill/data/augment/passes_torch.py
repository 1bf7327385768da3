"""The passes over a batch's pixels in torch alone: what a CPU does, and what the kernels in passes_triton must do.

Arguments and results are theirs, but for pixels between the passes, which are float32 on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inkmill.data.augment.random_numbers import NOISE_RING, NOISE_UNIT
from inkmill.data.augment.table import LUMA, ParamLayout


def warp(images: Tensor, index: Tensor, values: Tensor, layout: ParamLayout) -> Tensor:
    """Fetch each output pixel from its place in the input, bilinear, borders repeated; see warp_triton."""
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


def blur(pixels: Tensor, rows: Tensor | None, values: Tensor, layout: ParamLayout) -> Tensor:
    """Blur rows, all for None, by two matrix products, which take any sigma the same time; see blur_triton."""
    sigma = values[:, layout.columns["blur"]]
    if rows is not None:
        pixels, sigma = pixels[rows], sigma[rows]
    batch, height, width, channels = pixels.shape
    across, down = (_blurring(sigma, size, layout.blur_radius).to(pixels.dtype) for size in (width, height))
    sideways = pixels.permute(0, 2, 1, 3).reshape(batch, width, height * channels)
    sideways = torch.bmm(across, sideways).reshape(batch, width, height, channels)
    upright = sideways.permute(0, 2, 1, 3).reshape(batch, height, width * channels)
    return torch.bmm(down, upright).reshape(batch, height, width, channels)


def _blurring(sigma: Tensor, size: int, radius: int) -> Tensor:
    """Return (B, size, size) from (B, 1): a Gaussian in each row; what reaches beyond the border falls on its pixel."""
    taps = torch.arange(-radius, radius + 1, device=sigma.device)
    weights = torch.exp(-0.5 * (taps / sigma.clamp(min=1e-3)) ** 2) * (taps.abs() <= torch.ceil(3 * sigma))
    weights = weights / weights.sum(dim=1, keepdim=True)
    places = (torch.arange(size, device=sigma.device)[:, None] + taps).clamp(0, size - 1)
    shape = len(sigma), *places.shape
    matrix = torch.zeros(len(sigma), size, size, device=sigma.device)
    return matrix.scatter_add(2, places.expand(shape), weights[:, None].expand(shape))


def shade(
    pixels: Tensor, blurred: Tensor | None, place: Tensor | None, values: Tensor, ring: Tensor, layout: ParamLayout
) -> Tensor:
    """Apply colour and noise, and round; see shade_triton."""
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


def finish(pixels: Tensor, marked: Tensor | None, place: Tensor | None, values: Tensor, layout: ParamLayout) -> Tensor:
    """Put the compressed rows in their places, and cut out; see finish_triton."""
    pixels = _merged(pixels, marked, place)
    for number in range(layout.cutouts):
        pixels = _cut_out(pixels, values[:, layout.columns["cutouts"]].reshape(-1, layout.cutouts, 5)[:, number])
    return pixels


def _cut_out(pixels: Tensor, rectangle: Tensor) -> Tensor:
    left, top, right, bottom, shade = rectangle[:, :, None, None].unbind(1)
    x = torch.arange(pixels.shape[2], device=pixels.device)[None, None, :]
    y = torch.arange(pixels.shape[1], device=pixels.device)[None, :, None]
    inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
    return torch.where(inside[..., None], shade[..., None].round().to(torch.uint8), pixels)


def _merged(pixels: Tensor, changed: Tensor | None, place: Tensor | None) -> Tensor:
    if changed is None or place is None:
        return pixels if changed is None else changed
    return torch.where((place >= 0)[:, None, None, None], changed[place.clamp(min=0)], pixels)
