"""What JPEG compression loses, without the file: colour space, cosine transform and quantisation (ITU T.81, JFIF).

Only these lose anything; entropy coding does not, so it is left out. Quality scales the standard's example tables as
libjpeg does, and chroma has half the size in both directions, the default of cameras, OpenCV and Pillow alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

# ITU T.81, tables K.1 (luma) and K.2 (chroma).
_LUMA_STEPS = (
    "16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55 14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 62 "
    "18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92 49 64 78 87 103 121 120 101 72 92 95 98 112 100 103 99"
)
_CHROMA_STEPS = (
    "17 18 24 47 99 99 99 99 18 21 26 66 99 99 99 99 24 26 56 99 99 99 99 99 47 66 99 99 99 99 99 99 "
    "99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99"
)


def jpeg_marks(pixels: Tensor, quality: Tensor, transform: Tensor, steps: Tensor) -> Tensor:
    """Return a batch as JPEG compression leaves it.

    Args:
        pixels: float32 (B, H, W, C) in 0..255, RGB or gray.
        quality: (B,), 1..100.
        transform: `cosine_transform()` on the device.
        steps: `quantisation_steps()` on the device.

    Returns:
        float32 (B, H, W, C) in 0..255.
    """
    height, width, channels = pixels.shape[1:]
    planes = pixels.permute(0, 3, 1, 2)
    unit = 8 if channels == 1 else 16
    # Whole blocks: 8 x 8 pixels, and twice that where chroma has half the size. Encoders repeat the border too.
    planes = functional.pad(planes, (0, -width % unit, 0, -height % unit), mode="replicate")
    out = (
        _quantise(planes, _scaled(steps[0], quality), transform)
        if channels == 1
        else _compress_colour(planes, quality, transform, steps)
    )
    return out[:, :, :height, :width].permute(0, 2, 3, 1).clamp(0, 255)


def _compress_colour(rgb: Tensor, quality: Tensor, transform: Tensor, steps: Tensor) -> Tensor:
    red, green, blue = rgb.unbind(1)
    luma = (0.299 * red + 0.587 * green + 0.114 * blue).round()
    chroma = torch.stack([(blue - luma) / 1.772 + 128, (red - luma) / 1.402 + 128], dim=1)
    small = functional.avg_pool2d(chroma, 2).round()
    luma = _quantise(luma[:, None], _scaled(steps[0], quality), transform)[:, 0]
    small = _quantise(small, _scaled(steps[1], quality), transform)
    # libjpeg's "fancy upsampling" is exactly bilinear interpolation between centres
    b, r = (functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False) - 128).unbind(1)
    return torch.stack([luma + 1.402 * r, luma - 0.344136 * b - 0.714136 * r, luma + 1.772 * b], dim=1)


def _quantise(planes: Tensor, steps: Tensor, transform: Tensor) -> Tensor:
    """Round the 8x8 cosine coefficients of (B, C, H, W) planes to multiples of steps (B, 64)."""
    batch, channels, height, width = planes.shape
    # One matrix product transforms all blocks: row-major 8 x 8 as a vector of 64.
    blocks = planes.reshape(batch, channels, height // 8, 8, width // 8, 8).permute(0, 1, 2, 4, 3, 5)
    coefficients = (blocks.reshape(batch, -1, 64) - 128) @ transform.T
    coefficients = (coefficients / steps[:, None]).round() * steps[:, None]
    back = (coefficients @ transform + 128).round().clamp(0, 255)
    back = back.reshape(batch, channels, height // 8, width // 8, 8, 8).permute(0, 1, 2, 4, 3, 5)
    return back.reshape(batch, channels, height, width)


def _scaled(steps: Tensor, quality: Tensor) -> Tensor:
    """Return (B, 64) quantisation steps, scaled as libjpeg's jpeg_set_quality does."""
    scale = torch.where(quality < 50, torch.floor(5000 / quality.clamp(min=1)), 200 - 2 * quality)
    return torch.floor((steps * scale[:, None] + 50) / 100).clamp(1, 255)


def cosine_transform() -> Tensor:
    """Return the orthonormal 8x8 DCT-II of a flattened block as a (64, 64) matrix."""
    k = torch.arange(8, dtype=torch.float64)
    one = torch.cos((2 * k[None, :] + 1) * k[:, None] * math.pi / 16) / 2
    one[0] /= math.sqrt(2)
    return torch.kron(one, one).float()


def quantisation_steps() -> Tensor:
    """Return the standard's steps at quality 50, float32 (2, 64): luma and chroma."""
    return torch.tensor([[float(step) for step in table.split()] for table in (_LUMA_STEPS, _CHROMA_STEPS)])
