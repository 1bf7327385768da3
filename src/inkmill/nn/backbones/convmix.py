"""ConvMix: a small recogniser for GPUs, convolutions first and attention after (in the spirit of SVTRv2, 2024).

Speed decides its form: dense 3x3 convolutions while the map is large (tensor cores like them; depthwise ones starve
them), attention only when 2 rows by W / 4 tokens are left. The mixing blocks see the whole line, so that no LSTM is
needed after it: use sequence=none. Position comes from the convolutions' zero padding and one depthwise convolution, so
any width works.
"""

from __future__ import annotations

from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones.base import BACKBONES, Backbone
from inkmill.nn.backbones.blocks import MixingBlock, conv_bn_relu
from inkmill.nn.backbones.resnet import BasicBlock
from inkmill.nn.init import initialise


@BACKBONES.register("ConvMix")
class ConvMix(Backbone):
    """(B, 1|3, H, W) to (B, 256, ceil(H / 16), ceil(W / 4))."""

    out_channels = 256

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            conv_bn_relu(spec.input_channel, 32, stride=2),
            conv_bn_relu(32, 64, stride=2),
            *(BasicBlock(64, 64) for _ in range(2)),
            conv_bn_relu(64, 128, stride=(2, 1)),
            *(BasicBlock(128, 128) for _ in range(2)),
            conv_bn_relu(128, self.out_channels, stride=(2, 1)),
        )
        self.position = nn.Conv2d(self.out_channels, self.out_channels, 3, padding=1, groups=self.out_channels)
        self.blocks = nn.Sequential(*(MixingBlock(self.out_channels, heads=8) for _ in range(4)))
        self.norm = nn.LayerNorm(self.out_channels)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        x: Tensor = self.convolutions(images)
        x = x + self.position(x)  # zero padding at the borders tells each token where it is
        height, width = x.shape[2:]
        tokens = self.norm(self.blocks(x.flatten(2).transpose(1, 2)))
        out: Tensor = tokens.transpose(1, 2).unflatten(2, (height, width))
        return out
