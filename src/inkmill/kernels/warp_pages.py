"""The warp of parts of larger pictures as a GPU kernel: from pictures packed in memory to a batch of one size.

What the picture is kept at, where it lies and how its part is turned differ from image to image; the kernel reads that
from a few numbers, so that neither a copy nor a resize comes before it. Pixels that show much of the picture are means
of up to 4 x 4 places, which the GPU's caches hold.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256  # pixels of a program
_NUMBERS = 4  # about each picture, see `loaders.pages.PackedPages`


def warp_pages(
    memory: Tensor,
    headers: Tensor,
    index: Tensor,
    values: Tensor,
    places: Tensor,
    space: int,
    size: tuple[int, int],
    channels: int,
) -> Tensor:
    """Do what `data.augment.page_passes.warp_pages` does, on a GPU; float16, so within a sixteenth of a shade."""
    height, width = size
    out = torch.empty((len(index), height, width, channels), dtype=torch.float16, device=memory.device)
    if out.numel():
        _warp[(len(index), triton.cdiv(height * width, _BLOCK))](
            memory,
            headers,
            index,
            values,
            places,
            out,
            height,
            width,
            values.shape[1],
            SPACE=space,
            NUMBERS=_NUMBERS,
            CHANNELS=channels,
            BLOCK=_BLOCK,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _warp(  # type: ignore[no-untyped-def]
    memory,
    headers,
    index,
    values,
    places,
    out,
    height,
    width,
    columns,
    SPACE: tl.constexpr,
    NUMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_image = pixel < height * width
    # 1. Which picture, where it lies, and the matrix.
    about = headers + tl.load(index + row) * NUMBERS
    page = memory + tl.load(about)
    rows, across = tl.load(about + 1).to(tl.int32), tl.load(about + 2).to(tl.int32)
    m = values + row * columns + SPACE
    m0, m1, m2 = tl.load(m), tl.load(m + 1), tl.load(m + 2)
    m3, m4, m5 = tl.load(m + 3), tl.load(m + 4), tl.load(m + 5)
    m6, m7, m8 = tl.load(m + 6), tl.load(m + 7), tl.load(m + 8)
    count = tl.load(places + row).to(tl.int32)
    step = 1.0 / count
    x_first = (pixel % width).to(tl.float32) + (step - 1.0) * 0.5
    y_first = (pixel // width).to(tl.float32) + (step - 1.0) * 0.5
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    # 2. The mean of count x count places between the pixels, each bilinear.
    for place in range(count * count):
        to_x = x_first + (place % count).to(tl.float32) * step
        to_y = y_first + (place // count).to(tl.float32) * step
        w = m6 * to_x + m7 * to_y + m8
        x = (m0 * to_x + m1 * to_y + m2) / w
        y = (m3 * to_x + m4 * to_y + m5) / w
        # Far outside nothing is seen, and whole numbers would overflow.
        x = tl.minimum(tl.maximum(x, -2.0), across + 1.0)
        y = tl.minimum(tl.maximum(y, -2.0), rows + 1.0)
        left, top = tl.floor(x), tl.floor(y)
        right_share, low_share = x - left, y - top
        x0, y0 = left.to(tl.int32), top.to(tl.int32)
        for corner in tl.static_range(4):
            at_x, at_y = x0 + corner % 2, y0 + corner // 2
            share_x = right_share if corner % 2 else 1.0 - right_share
            share_y = low_share if corner // 2 else 1.0 - low_share
            share = share_x * share_y
            seen = in_image & (at_x >= 0) & (at_x < across) & (at_y >= 0) & (at_y < rows)
            at = page + (at_y.to(tl.int64) * across + at_x) * CHANNELS
            red += share * tl.load(at, mask=seen, other=0).to(tl.float32)
            if CHANNELS == 3:
                green += share * tl.load(at + 1, mask=seen, other=0).to(tl.float32)
                blue += share * tl.load(at + 2, mask=seen, other=0).to(tl.float32)
    # 3. The pixel.
    share = step * step
    to = out + (row * height * width + pixel) * CHANNELS
    tl.store(to, (red * share).to(tl.float16), mask=in_image)
    if CHANNELS == 3:
        tl.store(to + 1, (green * share).to(tl.float16), mask=in_image)
        tl.store(to + 2, (blue * share).to(tl.float16), mask=in_image)
