"""VGG for text: the seven-convolution network of CRNN (Shi et al. 2015, arXiv:1507.05717)."""

from __future__ import annotations

from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones.base import BACKBONES, Backbone, Limits
from inkmill.nn.backbones.blocks import conv_bn_relu
from inkmill.nn.init import initialise


def _conv_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.ReLU(inplace=True))


@BACKBONES.register("VGG")
class VGG(Backbone):
    """(B, 1|3, H, W) to (B, feature_channel, H // 16 - 1, W // 4 - 1); H >= 32."""

    limits = Limits(min_height=32, min_width=8)

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        c = self.out_channels = spec.feature_channel
        self.layers = nn.Sequential(
            *(_conv_relu(spec.input_channel, c // 8), nn.MaxPool2d(2)),
            *(_conv_relu(c // 8, c // 4), nn.MaxPool2d(2)),
            # From here on only the height shrinks: columns are time steps.
            *(_conv_relu(c // 4, c // 2), _conv_relu(c // 2, c // 2), nn.MaxPool2d((2, 1))),
            *(conv_bn_relu(c // 2, c), conv_bn_relu(c, c), nn.MaxPool2d((2, 1))),
            nn.Conv2d(c, c, 2),  # two rows of a 32-pixel image to one
            nn.ReLU(inplace=True),
        )
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        out: Tensor = self.layers(images)
        return out
