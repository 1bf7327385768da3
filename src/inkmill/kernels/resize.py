"""`Resize` on a GPU: the last step of OpenCV's linear resize, to the last bit, and the padding.

OpenCV resizes bytes in whole numbers: weights of 11 bits; a row's two pixels are summed with them, and of two such sums
the upper bits are. A place is worked out in double precision and rounded to single. Beyond the left and right border a
pixel has all the weight; beyond the upper and lower one it is taken twice, with both weights, which rounds differently.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inkmill.kernels.rounding import nearest

_BLOCK = 512  # pixels of a program
_NUMBERS = 4  # about each image: its first byte, its rows and columns, and the columns that it will fill


def resize_ragged(written: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Resize a ragged batch.

    Args:
        written: uint8, on a GPU: int64 (B, 4), for each image its first byte in here, its rows, its columns and the
            columns that it will fill, and then the images' bytes.
        shape: of the resized batch: B, height, width, channels.

    Returns:
        uint8 (B, H, W, C), not waited for.
    """
    batch, height, width, channels = shape
    out = torch.empty(shape, dtype=torch.uint8, device=written.device)
    if batch:
        _resize[(batch, triton.cdiv(height * width, _BLOCK))](
            written,
            written[: batch * _NUMBERS * 8].view(torch.int64),
            out,
            height,
            width,
            NUMBERS=_NUMBERS,
            CHANNELS=channels,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,  # OpenCV rounds each product
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _resize(  # type: ignore[no-untyped-def]
    written,
    numbers,
    out,
    height,
    width,
    NUMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_image = pixel < height * width
    # 1. Which image it is, and where the pixel comes from.
    about = numbers + row * NUMBERS
    image = written + tl.load(about)
    rows, columns = tl.load(about + 1).to(tl.int32), tl.load(about + 2).to(tl.int32)
    valid = tl.load(about + 3).to(tl.int32)
    x = _place(tl.minimum(pixel % width, valid - 1), columns, valid)
    y = _place(pixel // width, rows, height)
    # 2. The four pixels around it, and OpenCV's weights of 11 bits.
    left, top = tl.floor(x), tl.floor(y)
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    share = tl.where((x0 < 0) | (x0 >= columns - 1), 0.0, x - left)
    x0 = tl.minimum(tl.maximum(x0, 0), columns - 1)
    x1 = tl.minimum(x0 + 1, columns - 1)
    a0, a1 = _weight(1.0 - share), _weight(share)
    b0, b1 = _weight(1.0 - (y - top)), _weight(y - top)
    y1 = tl.minimum(tl.maximum(y0 + 1, 0), rows - 1)
    y0 = tl.minimum(tl.maximum(y0, 0), rows - 1)
    # 3. Two weighted sums, as OpenCV rounds them.
    to = out + row * height * width * CHANNELS + pixel * CHANNELS
    for c in tl.static_range(CHANNELS):
        upper = a0 * _pixel(image, y0 * columns + x0, c, in_image, CHANNELS)
        upper += a1 * _pixel(image, y0 * columns + x1, c, in_image, CHANNELS)
        lower = a0 * _pixel(image, y1 * columns + x0, c, in_image, CHANNELS)
        lower += a1 * _pixel(image, y1 * columns + x1, c, in_image, CHANNELS)
        value = ((b0 * (upper >> 4)) >> 16) + ((b1 * (lower >> 4)) >> 16)
        tl.store(to + c, ((value + 2) >> 2).to(tl.uint8), mask=in_image)


@triton.jit
def _place(to, size, goal):  # type: ignore[no-untyped-def]
    """Return where in a side of `size` pixels the pixel `to` of `goal` comes from."""
    scale = 1.0 / (tl.cast(goal, tl.float64) / tl.cast(size, tl.float64))
    return ((tl.cast(to, tl.float64) + 0.5) * scale - 0.5).to(tl.float32)


@triton.jit
def _weight(share):  # type: ignore[no-untyped-def]
    return nearest(share * 2048.0).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _pixel(image, place, c, in_image, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(image + place * CHANNELS + c, mask=in_image, other=0).to(tl.int32)
