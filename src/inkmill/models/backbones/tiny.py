"""Tiny: a backbone that two CPU cores can train in minutes.

A CPU pays for memory traffic as much as for arithmetic, and depthwise convolutions are all traffic (slower here than
the dense ones they replace). So: few channels while the map is large, dense 3x3 convolutions with a shortcut, and most
of the weights where only 2 rows or 1 are left. Five stages, width reduced 4 times; use it with sequence=none.
"""

from __future__ import annotations

from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.models.backbones.base import BACKBONES, Backbone, Limits, conv_bn_relu
from inkmill.models.init import initialise


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
    """(B, 1|3, H, W) to (B, 192, about H / 16 - 1, ceil(W / 4)); H >= 32."""

    limits = Limits(min_height=32)
    out_channels = 192

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            conv_bn_relu(spec.input_channel, 16, stride=2),
            conv_bn_relu(16, 32, stride=2),
            Residual(conv_bn_relu(32, 32)),
            conv_bn_relu(32, 64, stride=(2, 1)),
            Residual(conv_bn_relu(64, 64)),
            conv_bn_relu(64, 128, stride=(2, 1)),
            conv_bn_relu(128, self.out_channels, (2, 3), padding=(0, 1)),  # two rows to one
            Residual(conv_bn_relu(self.out_channels, self.out_channels, (1, 5), padding=(0, 2))),  # along the line
            nn.BatchNorm2d(self.out_channels),
        )
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        out: Tensor = self.layers(images)
        return out
