"""FAN, the fully attentional network of "Understanding the robustness in vision transformers" (Zhou et al. 2022).

A block attends twice: over positions (which tokens belong together), then over channels (which features to trust). The
hybrid form used here has two ConvNeXt stages (Liu et al. 2022) in place of a patch embedding. Written from the papers;
sizes follow TAO's FAN_tiny_2X, but its weight files do not fit this implementation.

Letters: B batch, C channels, H W rows and columns of the map, N = H*W tokens, A heads, D = C/A.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones.base import BACKBONES, Backbone, Limits
from inkmill.nn.backbones.blocks import FourierPosition, LayerNorm2d, TokenAttention
from inkmill.nn.init import initialise


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm, and a per-pixel MLP of four times the width, scaled down at the start."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))  # each block starts as nearly the identity

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        out: Tensor = x + (self.scale * y).permute(0, 3, 1, 2)
        return out


class ConvMLP(nn.Module):
    """MLP whose hidden layer looks at the neighbours: two depthwise 3x3 with GELU and batch norm between."""

    def __init__(self, channels: int, ratio: int = 4) -> None:
        super().__init__()
        hidden = ratio * channels
        self.widen = nn.Linear(channels, hidden)
        self.near = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden),
            nn.GELU(),
            nn.BatchNorm2d(hidden),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden),
        )
        self.narrow = nn.Linear(hidden, channels)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """(B, N, C) to the same shape."""
        y = self.widen(x).transpose(1, 2).unflatten(2, (height, width))
        out: Tensor = self.narrow(self.near(y).flatten(2).transpose(1, 2))
        return out


class ChannelAttention(nn.Module):
    """Efficient channel attention: a gate a channel, from where its query looks and how strong the key is there.

    gate = sigmoid(temperature * sum over N of softmax_N(query) * mean_D(key)), on the output of a convolutional MLP.
    Query, key and value are each normed, which keeps softmax and sigmoid off their flat ends in 16-bit training.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.query_norm, self.key_norm, self.value_norm = (nn.LayerNorm(channels) for _ in range(3))
        self.value = ConvMLP(channels)
        self.temperature = nn.Parameter(torch.ones(heads, 1))

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """(B, N, C) to the same shape."""
        query = self.query_norm(self.query(x)).unflatten(2, (self.heads, -1))  # B N A D
        key = self.key_norm(x).unflatten(2, (self.heads, -1)).mean(dim=3, keepdim=True)  # B N A 1
        looked = (query.softmax(dim=1) * key).sum(dim=1)  # B A D
        gate = (self.temperature * looked).sigmoid().flatten(1)[:, None]  # B 1 C
        out: Tensor = gate * self.value_norm(self.value(x, height, width))
        return out


class FANBlock(nn.Module):
    """Attention over tokens, then over channels, each normed before and scaled after."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = TokenAttention(channels, heads)
        self.channels = ChannelAttention(channels, heads)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """(B, N, C) to the same shape."""
        # Tokens first: which channels to trust is decided on what they have gathered.
        x = x + self.scale1 * self.tokens(self.norm1(x))
        out: Tensor = x + self.scale2 * self.channels(self.norm2(x), height, width)
        return out


@BACKBONES.register("FAN_tiny_2X")
class FANTiny2X(Backbone):
    """(B, 1|3, H, W) to (B, 192, H / 8, W / 8); H and W multiples of 8."""

    limits = Limits(multiple=8)
    out_channels = 192

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(spec.input_channel, 128, 2, 2),
            LayerNorm2d(128),
            *(ConvNeXtBlock(128) for _ in range(3)),
            LayerNorm2d(128),
            nn.Conv2d(128, 256, 2, 2),
            *(ConvNeXtBlock(256) for _ in range(3)),
            nn.Conv2d(256, self.out_channels, 2, 2),
        )
        self.position = FourierPosition(self.out_channels)
        self.blocks = nn.ModuleList(FANBlock(self.out_channels, heads=8) for _ in range(8))
        self.norm = nn.LayerNorm(self.out_channels)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        x = self.position(self.stem(images))
        height, width = x.shape[2:]
        tokens = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens, height, width)
        out: Tensor = self.norm(tokens).transpose(1, 2).unflatten(2, (height, width))
        return out
