"""ResNet for text: the 29-convolution network of Cheng et al. 2017 ("Focusing Attention"), TAO's and CLOVA's default.

Height is halved five times, width only twice, so that a 32x100 image keeps 26 time steps (width // 4 + 1).
ResNet2X leaves out the first pooling and gives twice as many steps.
"""

from __future__ import annotations

from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones.base import BACKBONES, Backbone, Limits
from inkmill.nn.backbones.blocks import conv_bn_relu
from inkmill.nn.init import initialise


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016); the shortcut is 1x1 only where the channels change."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H, W)."""
        y = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))
        return out


def _stage(in_channels: int, out_channels: int, blocks: int) -> list[nn.Module]:
    """Residual blocks, then the plain convolution that closes each stage."""
    parts: list[nn.Module] = [BasicBlock(in_channels, out_channels)]
    parts += [BasicBlock(out_channels, out_channels) for _ in range(blocks - 1)]
    return [*parts, conv_bn_relu(out_channels, out_channels)]


@BACKBONES.register("ResNet")
class ResNet(Backbone):
    """(B, 1|3, H, W) to (B, feature_channel, H // 16 - 1, W // 4 + 1); H >= 32."""

    limits = Limits(min_height=32, min_width=8)

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        c = self.out_channels = spec.feature_channel
        self.stem = nn.Sequential(conv_bn_relu(spec.input_channel, c // 16), conv_bn_relu(c // 16, c // 8))
        self.pool1 = self.make_first_pool()
        self.stage1 = nn.Sequential(*_stage(c // 8, c // 4, 1))
        self.pool2 = nn.MaxPool2d(2)
        self.stage2 = nn.Sequential(*_stage(c // 4, c // 2, 2))
        # From here on only the height shrinks: every further column that is lost is a time step.
        self.pool3 = nn.MaxPool2d(2, (2, 1), (0, 1))
        self.stage3 = nn.Sequential(*_stage(c // 2, c, 5))
        self.stage4 = nn.Sequential(*[BasicBlock(c, c) for _ in range(3)])
        self.collapse = nn.Sequential(
            conv_bn_relu(c, c, 2, (2, 1), (0, 1)),  # 4 rows to 2 of a 32-pixel image
            conv_bn_relu(c, c, 2, 1, 0),  # and to 1
        )
        initialise(self)

    def make_first_pool(self) -> nn.Module:
        """Return the pooling before stage 1."""
        return nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        x = self.stage1(self.pool1(self.stem(images)))
        x = self.stage3(self.pool3(self.stage2(self.pool2(x))))
        out: Tensor = self.collapse(self.stage4(x))
        return out


@BACKBONES.register("ResNet2X")
class ResNet2X(ResNet):
    """(B, 1|3, H, W) to (B, feature_channel, H // 8 - 1, W // 2 + 1): ResNet at twice the resolution; H >= 16."""

    limits = Limits(min_height=16, min_width=8)

    def make_first_pool(self) -> nn.Module:
        """Return no pooling at all."""
        return nn.Identity()
