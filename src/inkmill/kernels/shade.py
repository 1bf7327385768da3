"""Colour and noise as one GPU kernel, which reads the three channels that a new colour depends on once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inkmill.kernels.rounding import nearest

_BLOCK = 512  # pixels of a program


def shade(
    pixels: Tensor,
    blurred: Tensor | None,
    place: Tensor | None,
    values: Tensor,
    ring: Tensor,
    colour: int,
    noise: int,
    noise_unit: float,
    luma: tuple[float, float, float],
) -> Tensor:
    """Do what `data.augment.torch_passes.shade` does, on a GPU, with float16 or uint8 pixels."""
    batch, height, width, channels = pixels.shape
    if blurred is not None and place is None:
        pixels, blurred = blurred, None
    pixels, blurred = pixels.contiguous(), None if blurred is None else blurred.contiguous()
    # Arguments must be tensors: what is absent is stood in for by one that is never read (REPLACED).
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
        COLOUR=colour,
        NOISE=noise,
        CHANNELS=channels,
        RING=len(ring),
        UNIT=noise_unit,
        RED=luma[0],
        GREEN=luma[1],
        BLUE=luma[2],
        BLOCK=_BLOCK,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _shade(  # type: ignore[no-untyped-def]
    pixels,
    blurred,
    place,
    values,
    ring,
    out,
    count,
    columns,
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
    in_image = pixel < count
    numbers = values + row * columns
    # 1. The image, or its blurred version.
    source = pixels + row * count * CHANNELS
    if REPLACED:
        other = tl.load(place + row)
        if other >= 0:
            source = blurred + other * count * CHANNELS
    source += pixel * CHANNELS
    to = out + row * count * CHANNELS + pixel * CHANNELS
    # 2. Colour, then noise and rounding for each channel.
    if COLOUR >= 0:
        m = numbers + COLOUR
        if CHANNELS == 1:  # as in params.gray_gain of augmentation
            gain = RED * (tl.load(m) + tl.load(m + 1) + tl.load(m + 2))
            gain += GREEN * (tl.load(m + 4) + tl.load(m + 5) + tl.load(m + 6))
            gain += BLUE * (tl.load(m + 8) + tl.load(m + 9) + tl.load(m + 10))
            more = RED * tl.load(m + 3) + GREEN * tl.load(m + 7) + BLUE * tl.load(m + 11)
            gray = tl.load(source, mask=in_image, other=0).to(tl.float32)
            _add_noise(gray * gain + more, ring, numbers, pixel, in_image, to, 0, NOISE, CHANNELS, RING, UNIT)
        else:
            red = tl.load(source, mask=in_image, other=0).to(tl.float32)
            green = tl.load(source + 1, mask=in_image, other=0).to(tl.float32)
            blue = tl.load(source + 2, mask=in_image, other=0).to(tl.float32)
            for c in tl.static_range(CHANNELS):
                n = m + 4 * c
                value = tl.load(n) * red + tl.load(n + 1) * green + tl.load(n + 2) * blue + tl.load(n + 3)
                _add_noise(value, ring, numbers, pixel, in_image, to, c, NOISE, CHANNELS, RING, UNIT)
    else:
        for c in tl.static_range(CHANNELS):
            value = tl.load(source + c, mask=in_image, other=0).to(tl.float32)
            _add_noise(value, ring, numbers, pixel, in_image, to, c, NOISE, CHANNELS, RING, UNIT)


@triton.jit  # type: ignore[untyped-decorator]
def _add_noise(  # type: ignore[no-untyped-def]
    value,
    ring,
    numbers,
    pixel,
    in_image,
    to,
    c,
    NOISE: tl.constexpr,
    CHANNELS: tl.constexpr,
    RING: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Add noise to one channel, round, and store."""
    value = tl.minimum(tl.maximum(value, 0.0), 255.0)
    if NOISE >= 0:
        begin = tl.load(numbers + NOISE + 1).to(tl.int32)
        noise = tl.load(ring + ((begin + pixel * CHANNELS + c) & (RING - 1))).to(tl.float32)
        value = tl.minimum(tl.maximum(value + noise * (tl.load(numbers + NOISE) / UNIT), 0.0), 255.0)
    tl.store(to + c, nearest(value).to(tl.uint8), mask=in_image)
