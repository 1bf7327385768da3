"""Compressed images and cutouts as a GPU kernel, which looks once an image, not once a pixel, for what covers it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inkmill.kernels.rounding import nearest

_BLOCK = 2048  # bytes of a program


def finish(
    pixels: Tensor, marked: Tensor | None, place: Tensor | None, values: Tensor, cutouts: int, count: int
) -> Tensor:
    """Do what `data.augment.torch_passes.finish` does, on a GPU."""
    if marked is not None and place is None:
        pixels, marked = marked, None
    batch, height, width, channels = pixels.shape
    pixels, marked = pixels.contiguous(), None if marked is None else marked.contiguous()
    out = torch.empty_like(pixels)
    _finish[(batch, triton.cdiv(height * width * channels, _BLOCK))](
        pixels,
        pixels if marked is None else marked,
        values if place is None else place,
        values,
        out,
        height * width * channels,
        width,
        values.shape[1],
        REPLACED=place is not None,
        CUTOUTS=cutouts,
        COUNT=count,
        CHANNELS=channels,
        BLOCK=_BLOCK,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    pixels,
    marked,
    place,
    values,
    out,
    count,
    width,
    columns,
    REPLACED: tl.constexpr,
    CUTOUTS: tl.constexpr,
    COUNT: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    byte = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_image = byte < count
    # 1. The image, or its compressed version.
    source = pixels + row * count
    if REPLACED:
        other = tl.load(place + row)
        if other >= 0:
            source = marked + other * count
    value = tl.load(source + byte, mask=in_image, other=0)
    # 2. The rectangles over it; one without area is skipped without a look at the pixels.
    for k in tl.static_range(COUNT):
        rectangle = values + row * columns + CUTOUTS + 5 * k
        left, top = tl.load(rectangle), tl.load(rectangle + 1)
        right, bottom = tl.load(rectangle + 2), tl.load(rectangle + 3)
        if left < right:
            x, y = byte // CHANNELS % width, byte // CHANNELS // width
            inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
            value = tl.where(inside, nearest(tl.load(rectangle + 4)).to(tl.uint8), value)
    tl.store(out + row * count + byte, value, mask=in_image)
