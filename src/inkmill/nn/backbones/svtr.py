"""SVTRLite: a scene-text recogniser in the spirit of SVTRv2 (Du et al. 2024, arXiv:2411.15858), shaped by two machines.

What is SVTRv2's: the map keeps an eighth of the height, convolutions look near and attention looks everywhere, no
position code fixes a size, and a query per column picks what it reads from the rows (feature rearranging). Tilted and
curved text lies on other rows from column to column: a mean over the rows would mix it with the ground.

What is not: a GPU starves on grouped convolutions and layer norms of large maps, so local blocks are a dense 3x3 and
batch norm, which costs nothing once it is folded; and one CPU thread has 5 ms for a word, so the height is halved
before the second stage, and the last blocks run on a single row of W / 4 tokens, where weights cost a quarter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones.base import BACKBONES, Backbone, Limits
from inkmill.nn.backbones.blocks import TokenAttention
from inkmill.nn.init import initialise

_DROP_PATH = 0.1


class DropPath(nn.Module):
    """Leave a block out for a random part of the samples while training (stochastic depth, Huang et al. 2016)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) to the same shape; what stays is scaled up so that the mean stays."""
        if not self.training or not self.share:
            return x
        kept = torch.rand((len(x), *[1] * (x.ndim - 1)), device=x.device) >= self.share
        return x * (kept / (1 - self.share)).to(x.dtype)


class LocalBlock(nn.Module):
    """Dense 3x3 convolution and an MLP of 1x1 convolutions, each added to what it reads."""

    def __init__(self, channels: int, drop: float, ratio: int = 2) -> None:
        super().__init__()
        self.local = _conv_bn(channels, channels)
        self.mlp = nn.Sequential(
            _conv_bn(channels, ratio * channels, 1), nn.ReLU(inplace=True), _conv_bn(ratio * channels, channels, 1)
        )
        self.drop = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        x = x + self.drop(self.local(x))
        out: Tensor = x + self.drop(self.mlp(x))
        return out


class Gelu(nn.GELU):
    """GELU, written into exported graphs in the form that ONNX Runtime makes one kernel of; torch's own it leaves as
    five passes, a tenth of what a word takes."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same shape."""
        if torch.compiler.is_exporting():
            return (0.5 * x) * (torch.erf(x / math.sqrt(2)) + 1)
        return super().forward(x)


class GlobalBlock(nn.Module):
    """Pre-norm transformer block over all tokens, its two halves left out at random while training."""

    def __init__(self, channels: int, heads: int, drop: float, ratio: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = TokenAttention(channels, heads)
        self.mlp = nn.Sequential(nn.Linear(channels, ratio * channels), Gelu(), nn.Linear(ratio * channels, channels))
        self.drop = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same shape."""
        x = x + self.drop(self.attention(self.norm1(x)))
        out: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return out


class ColumnQuery(nn.Module):
    """One learned query that every column asks its rows: (B, H, W, C) to (B, W, out)."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.score = nn.Linear(channels, 1)
        self.value = nn.Linear(channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Weigh the rows of each column by a softmax over them."""
        x = self.norm(x)
        weights = self.score(x).softmax(dim=1)
        # The weighted sum comes before the layer, which then runs on one row: both are linear, so nothing changes.
        out: Tensor = self.value((weights * x).sum(dim=1))
        return out


def _conv_bn(in_channels: int, out_channels: int, kernel: int = 3, stride: int | tuple[int, int] = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out_channels)
    )


@BACKBONES.register("SVTRLite")
class SVTRLite(Backbone):
    """(B, 1|3, H, W) to (B, 256, 1, ceil(W / 4)). Use it with sequence=none."""

    limits = Limits(min_height=8)
    out_channels = 256

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        drops = (_DROP_PATH * block / 10 for block in range(11))  # the deeper, the more often
        # 1. H/4: edges and strokes.
        self.stem = nn.Sequential(
            _conv_bn(spec.input_channel, 32, stride=2),
            nn.ReLU(inplace=True),
            _conv_bn(32, 64, stride=2),
            nn.ReLU(inplace=True),
        )
        self.stage1 = nn.Sequential(*(LocalBlock(64, next(drops)) for _ in range(2)))
        # 2. H/8: parts of characters.
        self.down1 = _conv_bn(64, 128, stride=(2, 1))
        self.stage2 = nn.Sequential(*(LocalBlock(128, next(drops)) for _ in range(4)))
        # 3. H/8, all tokens see one another: which parts belong together.
        self.down2 = _conv_bn(128, 192)
        self.stage3 = nn.Sequential(*(GlobalBlock(192, 6, next(drops)) for _ in range(3)))
        # 4. One row: each column takes what it reads from its rows, then columns see one another.
        self.columns = ColumnQuery(192, self.out_channels)
        self.stage4 = nn.Sequential(*(GlobalBlock(self.out_channels, 8, next(drops)) for _ in range(2)))
        self.norm = nn.LayerNorm(self.out_channels)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        x = self.stage2(self.down1(self.stage1(self.stem(images))))
        x = self.down2(x)
        height, width = x.shape[2:]
        tokens = self.stage3(x.flatten(2).transpose(1, 2))
        row = self.columns(tokens.unflatten(1, (height, width)))
        out: Tensor = self.norm(self.stage4(row)).transpose(1, 2)[:, :, None]
        return out
