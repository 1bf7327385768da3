"""The parts that several backbones share: convolution unit, norm of a map, position code, attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_bn_relu(
    in_channels: int,
    out_channels: int,
    kernel: int | tuple[int, int] = 3,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 1,
) -> nn.Sequential:
    """Return convolution (no bias), batch norm and ReLU: the unit all the convolutional backbones are made of."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of a (B, C, H, W) map."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class FourierPosition(nn.Module):
    """Sines and cosines of row and column at 16 frequencies each, mixed to C channels; any H and W (XCiT, 2021)."""

    float_parts = ("mix",)  # what it gives is a constant of the size: int8 would save nothing

    def __init__(self, channels: int, bands: int = 32) -> None:
        super().__init__()
        self.bands = bands
        self.mix = nn.Conv2d(2 * bands, channels, 1)

    def _axis(self, length: int, like: Tensor) -> Tensor:
        """Return (length, bands) values; positions run from 0 to 2 pi whatever the length."""
        position = torch.arange(1, length + 1, device=like.device, dtype=torch.float32) * (2 * math.pi / length)
        exponent = torch.arange(self.bands // 2, device=like.device, dtype=torch.float32) * (2 / self.bands)
        angle = position[:, None] / 10_000**exponent
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape, with the position added."""
        height, width = x.shape[2:]
        rows = self._axis(height, x)[:, None].expand(height, width, self.bands)
        columns = self._axis(width, x)[None].expand(height, width, self.bands)
        code = torch.cat([rows, columns], dim=2).permute(2, 0, 1)[None]
        out: Tensor = x + self.mix(code.to(self.mix.weight.dtype))
        return out


class TokenAttention(nn.Module):
    """Multi-head self-attention over the N tokens."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same shape."""
        batch, tokens, channels = x.shape
        # One product for all three, then (3, B, heads, N, channels of a head).
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, channels))
        return out


class MixingBlock(nn.Module):
    """Pre-norm transformer block: attention over all tokens, then an MLP `ratio` times as wide."""

    def __init__(self, channels: int, heads: int, ratio: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = TokenAttention(channels, heads)
        self.mlp = nn.Sequential(
            nn.Linear(channels, ratio * channels), nn.GELU(), nn.Linear(ratio * channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same shape."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out
