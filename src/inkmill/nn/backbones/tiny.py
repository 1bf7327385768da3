"""Tiny: a backbone that two CPU cores can train in minutes.

A CPU pays for memory traffic as much as for arithmetic, and depthwise convolutions are all traffic (slower here than
the dense ones they replace). So: few channels while the map is large, dense 3x3 convolutions with a shortcut, and most
of the weights where one row is left. There, one attention block that knows each step's place sees the whole line. It
costs little and matters much: without it, CTC stayed at answering nothing but blanks for 15 epochs and more in 4 of 7
trainings on captcha_digits4 (seeds, rates and sizes differed); with it, in none of 15.
"""

from __future__ import annotations

from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones.base import BACKBONES, Backbone, Limits
from inkmill.nn.backbones.blocks import FourierPosition, MixingBlock, conv_bn_relu
from inkmill.nn.init import initialise


class Residual(nn.Module):
    """x + block(x)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        out: Tensor = x + self.block(x)
        return out


@BACKBONES.register("Tiny")
class Tiny(Backbone):
    """(B, 1|3, H, W) to (B, 192, ceil(H / 16) - 1, ceil(W / 4)); H >= 32. Use it with sequence=none."""

    limits = Limits(min_height=32)
    out_channels = 192

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        c = self.out_channels
        self.convolutions = nn.Sequential(
            conv_bn_relu(spec.input_channel, 16, stride=2),
            conv_bn_relu(16, 32, stride=2),
            Residual(conv_bn_relu(32, 32)),
            conv_bn_relu(32, 64, stride=(2, 1)),
            Residual(conv_bn_relu(64, 64)),
            conv_bn_relu(64, 128, stride=(2, 1)),
            conv_bn_relu(128, c, (2, 3), padding=(0, 1)),  # two rows of a 32-pixel image to one
        )
        self.position = FourierPosition(c)
        self.mixing = MixingBlock(c, heads=6, ratio=2)
        self.norm = nn.LayerNorm(c)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        x = self.position(self.convolutions(images))
        height, width = x.shape[2:]
        tokens = self.norm(self.mixing(x.flatten(2).transpose(1, 2)))
        out: Tensor = tokens.transpose(1, 2).unflatten(2, (height, width))
        return out
