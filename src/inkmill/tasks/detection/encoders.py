"""The encoders of detection: pictures to four maps, at 1/4, 1/8, 1/16 and 1/32 of their size.

inkmill's own have one shape in two widths, made for both ends: where maps are large and channels few, dense 3x3
convolutions, which GPUs are made for; where they are small, depthwise convolutions with a wide 1x1 after them (RepViT,
Wang et al. 2024), which CPUs are. Every block of a width costs about as much as any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError, MissingExtraError
from inkmill.nn.init import initialise
from inkmill.registry import suggest

REDUCTIONS = (4, 8, 16, 32)
"""How many pixels of the picture a pixel of each map covers, along each side."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One size of the detector.

    Attributes:
        widths: channels of the four maps.
        depths: blocks of each.
        neck: channels of the pyramid.
        encoder: timm's model that gives the maps; empty for inkmill's own.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    neck: int
    encoder: str = ""


SHAPES = {
    "small": Shape((32, 96, 192, 384), (1, 2, 6, 2), 64),
    "tiny": Shape((24, 48, 96, 192), (1, 2, 6, 2), 32),
    "base": Shape((), (), 256, "resnet50"),
}
"""The detectors that have names of their own; the default comes first."""


def conv_norm(
    before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    """Return convolution (no bias), batch norm and, where asked for, ReLU."""
    parts: list[nn.Module] = [
        nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
    ]
    return nn.Sequential(*parts, nn.ReLU(inplace=True)) if active else nn.Sequential(*parts)


class DenseBlock(nn.Module):
    """x + conv(conv(x)), 3x3 both, ReLU after the sum (He et al. 2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = conv_norm(channels, channels)
        self.last = conv_norm(channels, channels, active=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return F.relu(x + self.last(self.first(x)))


class MixBlock(nn.Module):
    """First the places are mixed (depthwise 5x5), then the channels (1x1, twice as wide, 1x1), each added to x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.places = conv_norm(channels, channels, 5, groups=channels, active=False)
        self.wide = conv_norm(channels, 2 * channels, 1)
        self.last = conv_norm(2 * channels, channels, 1, active=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        x = x + self.places(x)
        out: Tensor = x + self.last(self.wide(x))
        return out


class OwnEncoder(nn.Module):
    """inkmill's own shape; see the head of this file.

    Args:
        spec: the input's channels.
        shape: widths and depths.
    """

    def __init__(self, spec: ModelSpec, shape: Shape) -> None:
        super().__init__()
        self.channels = shape.widths
        self.stem = conv_norm(spec.input_channel, shape.widths[0] // 2, stride=2)
        stages, before = [], shape.widths[0] // 2
        for number, (width, depth) in enumerate(zip(shape.widths, shape.depths, strict=True)):
            block = DenseBlock if number == 0 else MixBlock
            stages.append(nn.Sequential(conv_norm(before, width, stride=2), *(block(width) for _ in range(depth))))
            before = width
        self.stages = nn.ModuleList(stages)
        initialise(self)
        # Each block begins as nothing, so that what is added does not grow with the depth (Goyal et al. 2017).
        for part in self.modules():
            if isinstance(part, DenseBlock | MixBlock):
                nn.init.zeros_(part.last.get_parameter("1.weight"))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the four maps."""
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class TimmEncoder(nn.Module):
    """The four maps of a timm model.

    Args:
        spec: the input, and whether published weights are loaded.
        name: timm's.

    Raises:
        ConfigError: timm has no such model, it gives no such maps, or its weights cannot be had.
        MissingExtraError: timm is not installed.
    """

    def __init__(self, spec: ModelSpec, name: str) -> None:
        super().__init__()
        try:
            import timm
        except ImportError as error:
            raise MissingExtraError("timm", "train", f"backbone {spec.backbone!r}") from error
        if not timm.is_model(name):
            raise ConfigError(
                f"unknown model.backbone {name!r}{suggest(name, SHAPES)}; a detector's is one of "
                f"{', '.join(SHAPES)}, or a model of timm"
            )
        try:
            maps, info = _levels(timm, name)
            options: dict[str, Any] = {"in_chans": spec.input_channel, "pretrained": spec.backbone_pretrained}
            self.encoder = timm.create_model(name, features_only=True, out_indices=maps, **options)
        except Exception as error:  # timm and its models raise whatever they like
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"timm's {name} cannot be the backbone of a detector: {reason}") from error
        self.channels = info

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the four maps."""
        maps: list[Tensor] = self.encoder(images)
        return maps


def _levels(timm: Any, name: str) -> tuple[list[int], tuple[int, ...]]:
    """Return which of a model's maps are those of REDUCTIONS, and their channels."""
    info = timm.create_model(name, features_only=True, pretrained=False).feature_info
    found = dict(zip(info.reduction(), zip(info.out_indices, info.channels(), strict=True), strict=True))
    if missing := [reduction for reduction in REDUCTIONS if reduction not in found]:
        raise ValueError(f"it gives no map at 1/{missing[0]} of the picture's size")
    return [found[reduction][0] for reduction in REDUCTIONS], tuple(found[reduction][1] for reduction in REDUCTIONS)


def build_encoder(spec: ModelSpec) -> tuple[OwnEncoder | TimmEncoder, int]:
    """Return the encoder that `model.backbone` names, and the channels of the pyramid that suits it.

    Raises:
        ConfigError, MissingExtraError: see TimmEncoder.
    """
    shape = SHAPES.get(spec.backbone, Shape((), (), 128, spec.backbone))
    encoder = TimmEncoder(spec, shape.encoder) if shape.encoder else OwnEncoder(spec, shape)
    return encoder, shape.neck
