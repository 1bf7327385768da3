"""Warp as a GPU kernel: fetching every pixel from its place.

A place, a division and perhaps some sines, is worked out once here and not once for each of a pixel's channels, as a
compiler does that makes a kernel of a tensor's elements: 2,048 crops of 32x128x3 take one H200 56 microseconds, and
took 125.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512  # pixels of a program


def warp(images: Tensor, index: Tensor, values: Tensor, space: int, waves: int, wave_count: int) -> Tensor:
    """Do what `data.augment.torch_passes.warp` does, on a GPU; float16, so within a sixteenth of a shade."""
    _, height, width, channels = images.shape
    images = images.contiguous()  # the kernel computes addresses by itself
    out = torch.empty((len(index), height, width, channels), dtype=torch.float16, device=images.device)
    _warp[(len(index), triton.cdiv(height * width, _BLOCK))](
        images,
        index,
        values,
        out,
        height,
        width,
        values.shape[1],
        SPACE=space,
        WAVES=waves,
        COUNT=wave_count,
        CHANNELS=channels,
        BLOCK=_BLOCK,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _warp(  # type: ignore[no-untyped-def]
    images,
    index,
    values,
    out,
    height,
    width,
    columns,
    SPACE: tl.constexpr,
    WAVES: tl.constexpr,
    COUNT: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_image = pixel < height * width
    numbers = values + row * columns
    # 1. Where the pixel comes from: the waves, then the matrix in homogeneous coordinates.
    x = (pixel % width).to(tl.float32)
    y = (pixel // width).to(tl.float32)
    if WAVES >= 0:
        from_x, from_y = x, y
        for k in tl.static_range(COUNT):
            wave = numbers + WAVES + 5 * k
            sine = tl.sin(tl.load(wave + 2) * from_x + tl.load(wave + 3) * from_y + tl.load(wave + 4))
            x += tl.load(wave) * sine
            y += tl.load(wave + 1) * sine
    if SPACE >= 0:
        m = numbers + SPACE
        w = tl.load(m + 6) * x + tl.load(m + 7) * y + tl.load(m + 8)
        to_x = (tl.load(m) * x + tl.load(m + 1) * y + tl.load(m + 2)) / w
        y = (tl.load(m + 3) * x + tl.load(m + 4) * y + tl.load(m + 5)) / w
        x = to_x
    # 2. What is there: the four pixels around, weighted, for all channels.
    x = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    right_share, low_share = x - left, y - top
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    x1, y1 = tl.minimum(x0 + 1, width - 1), tl.minimum(y0 + 1, height - 1)
    image = images + tl.load(index + row) * height * width * CHANNELS
    to = out + row * height * width * CHANNELS + pixel * CHANNELS
    for c in tl.static_range(CHANNELS):
        a = tl.load(image + (y0 * width + x0) * CHANNELS + c, mask=in_image, other=0).to(tl.float32)
        b = tl.load(image + (y0 * width + x1) * CHANNELS + c, mask=in_image, other=0).to(tl.float32)
        upper = a + right_share * (b - a)
        a = tl.load(image + (y1 * width + x0) * CHANNELS + c, mask=in_image, other=0).to(tl.float32)
        b = tl.load(image + (y1 * width + x1) * CHANNELS + c, mask=in_image, other=0).to(tl.float32)
        lower = a + right_share * (b - a)
        tl.store(to + c, (upper + low_share * (lower - upper)).to(tl.float16), mask=in_image)
