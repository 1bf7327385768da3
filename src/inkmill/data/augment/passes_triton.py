"""The two passes over every pixel as GPU kernels: fetching it from its place, and its colour and noise.

A pixel's place, a division and perhaps some sines, is worked out once here and not once for each of its channels, as a
compiler does that makes a kernel of a tensor's elements; and the three channels that a colour hangs on are read once
and not three times. Fetching 2,048 crops of 32x128x3 takes one H200 56 microseconds, and took 125.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inkmill.data.augment.random_numbers import NOISE_RING, NOISE_UNIT
from inkmill.data.augment.table import LUMA, Layout

_BLOCK = 512  # pixels of a program
_ABSENT = -1
_RED, _GREEN, _BLUE = (float(share) for share in LUMA)


def warp(images: Tensor, index: Tensor, values: Tensor, layout: Layout) -> Tensor:
    """Fetch each output pixel from its place in the input, bilinear, borders repeated.

    Args:
        images: uint8 (N, H, W, C) on a GPU.
        index: int64 (B,), which of the images.
        values: float32 (B, layout.size), contiguous.
        layout: what the columns are.

    Returns:
        float16 (B, H, W, C): within a sixteenth of a shade.
    """
    _, height, width, channels = images.shape
    images = images.contiguous()
    out = torch.empty((len(index), height, width, channels), dtype=torch.float16, device=images.device)
    _warp[(len(index), triton.cdiv(height * width, _BLOCK))](
        images,
        index,
        values,
        out,
        height,
        width,
        values.shape[1],
        SPACE=_start(layout, "space"),
        WAVES=_start(layout, "waves"),
        COUNT=layout.waves,
        CHANNELS=channels,
        BLOCK=_BLOCK,
    )
    return out


def shade(
    pixels: Tensor, blurred: Tensor | None, place: Tensor | None, values: Tensor, ring: Tensor, layout: Layout
) -> Tensor:
    """Apply colour and noise, and round.

    Args:
        pixels: float16 or uint8 (B, H, W, C) on a GPU.
        blurred: of the same dtype (n, H, W, C), what takes the place of some rows; None for nothing.
        place: int64 (B,), where in `blurred` a row lies, -1 for nowhere; None where that is all rows, or none.
        values: float32 (B, layout.size), contiguous.
        ring: the ring of noise on the GPU.
        layout: what the columns are.

    Returns:
        uint8 (B, H, W, C).
    """
    batch, height, width, channels = pixels.shape
    if blurred is not None and place is None:
        pixels, blurred = blurred, None
    pixels, blurred = pixels.contiguous(), None if blurred is None else blurred.contiguous()
    out = torch.empty((batch, height, width, channels), dtype=torch.uint8, device=pixels.device)
    _shade[(batch, triton.cdiv(height * width, _BLOCK))](
        pixels,
        pixels if blurred is None else blurred,
        values if place is None else place,
        values,
        ring,
        out,
        height * width,
        values.shape[1],
        REPLACED=place is not None,
        COLOUR=_start(layout, "colour"),
        NOISE=_start(layout, "noise"),
        CHANNELS=channels,
        RING=NOISE_RING,
        UNIT=NOISE_UNIT,
        RED=_RED,
        GREEN=_GREEN,
        BLUE=_BLUE,
        BLOCK=_BLOCK,
    )
    return out


def _start(layout: Layout, name: str) -> int:
    part = layout.columns.get(name)
    return _ABSENT if part is None else part.start


@triton.jit  # type: ignore[untyped-decorator]
def _warp(  # type: ignore[no-untyped-def]
    images,
    index,
    values,
    out,
    height,
    width,
    size,
    SPACE: tl.constexpr,
    WAVES: tl.constexpr,
    COUNT: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < height * width
    numbers = values + row * size
    x = (pixel % width).to(tl.float32)
    y = (pixel // width).to(tl.float32)
    if WAVES >= 0:
        from_x, from_y = x, y
        for k in tl.static_range(COUNT):
            wave = numbers + WAVES + 5 * k
            swing = tl.sin(tl.load(wave + 2) * from_x + tl.load(wave + 3) * from_y + tl.load(wave + 4))
            x += tl.load(wave) * swing
            y += tl.load(wave + 1) * swing
    if SPACE >= 0:
        m = numbers + SPACE
        depth = tl.load(m + 6) * x + tl.load(m + 7) * y + tl.load(m + 8)
        to_x = (tl.load(m) * x + tl.load(m + 1) * y + tl.load(m + 2)) / depth
        y = (tl.load(m + 3) * x + tl.load(m + 4) * y + tl.load(m + 5)) / depth
        x = to_x
    x = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    right_share, low_share = x - left, y - top
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    x1, y1 = tl.minimum(x0 + 1, width - 1), tl.minimum(y0 + 1, height - 1)
    image = images + tl.load(index + row) * height * width * CHANNELS
    to = out + row * height * width * CHANNELS + pixel * CHANNELS
    for c in tl.static_range(CHANNELS):
        a = tl.load(image + (y0 * width + x0) * CHANNELS + c, mask=there, other=0).to(tl.float32)
        b = tl.load(image + (y0 * width + x1) * CHANNELS + c, mask=there, other=0).to(tl.float32)
        upper = a + right_share * (b - a)
        a = tl.load(image + (y1 * width + x0) * CHANNELS + c, mask=there, other=0).to(tl.float32)
        b = tl.load(image + (y1 * width + x1) * CHANNELS + c, mask=there, other=0).to(tl.float32)
        lower = a + right_share * (b - a)
        tl.store(to + c, (upper + low_share * (lower - upper)).to(tl.float16), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _shade(  # type: ignore[no-untyped-def]
    pixels,
    blurred,
    place,
    values,
    ring,
    out,
    count,
    size,
    REPLACED: tl.constexpr,
    COLOUR: tl.constexpr,
    NOISE: tl.constexpr,
    CHANNELS: tl.constexpr,
    RING: tl.constexpr,
    UNIT: tl.constexpr,
    RED: tl.constexpr,
    GREEN: tl.constexpr,
    BLUE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < count
    numbers = values + row * size
    source = pixels + row * count * CHANNELS
    if REPLACED:
        other = tl.load(place + row)
        if other >= 0:
            source = blurred + other * count * CHANNELS
    source += pixel * CHANNELS
    to = out + row * count * CHANNELS + pixel * CHANNELS
    if COLOUR >= 0:
        m = numbers + COLOUR
        if CHANNELS == 1:  # see table.gray_gain
            gain = RED * (tl.load(m) + tl.load(m + 1) + tl.load(m + 2))
            gain += GREEN * (tl.load(m + 4) + tl.load(m + 5) + tl.load(m + 6))
            gain += BLUE * (tl.load(m + 8) + tl.load(m + 9) + tl.load(m + 10))
            more = RED * tl.load(m + 3) + GREEN * tl.load(m + 7) + BLUE * tl.load(m + 11)
            gray = tl.load(source, mask=there, other=0).to(tl.float32)
            _finish(gray * gain + more, ring, numbers, pixel, there, to, 0, NOISE, CHANNELS, RING, UNIT)
        else:
            red = tl.load(source, mask=there, other=0).to(tl.float32)
            green = tl.load(source + 1, mask=there, other=0).to(tl.float32)
            blue = tl.load(source + 2, mask=there, other=0).to(tl.float32)
            for c in tl.static_range(CHANNELS):
                n = m + 4 * c
                value = tl.load(n) * red + tl.load(n + 1) * green + tl.load(n + 2) * blue + tl.load(n + 3)
                _finish(value, ring, numbers, pixel, there, to, c, NOISE, CHANNELS, RING, UNIT)
    else:
        for c in tl.static_range(CHANNELS):
            value = tl.load(source + c, mask=there, other=0).to(tl.float32)
            _finish(value, ring, numbers, pixel, there, to, c, NOISE, CHANNELS, RING, UNIT)


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    value,
    ring,
    numbers,
    pixel,
    there,
    to,
    c,
    NOISE: tl.constexpr,
    CHANNELS: tl.constexpr,
    RING: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Add noise to one channel, round to the nearest even number, and store."""
    value = tl.minimum(tl.maximum(value, 0.0), 255.0)
    if NOISE >= 0:
        begin = tl.load(numbers + NOISE + 1).to(tl.int32)
        noise = tl.load(ring + ((begin + pixel * CHANNELS + c) & (RING - 1))).to(tl.float32)
        value = tl.minimum(tl.maximum(value + noise * (tl.load(numbers + NOISE) / UNIT), 0.0), 255.0)
    value = (value + 12582912.0) - 12582912.0  # 1.5 * 2**23: sums there have no fraction left
    tl.store(to + c, value.to(tl.uint8), mask=there)
