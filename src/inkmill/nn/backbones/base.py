"""What a backbone is: a module from images to a feature map, and the input sizes it can take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError
from inkmill.registry import Registry


@dataclass(frozen=True, slots=True)
class Limits:
    """The input sizes of a family, in pixels."""

    min_height: int = 8
    min_width: int = 8
    multiple: int = 1

    def check(self, backbone: str, height: int, width: int) -> None:
        """Refuse an input size that the family cannot take.

        Raises:
            ConfigError: too low, too narrow, or not a multiple; the message names a size that works.
        """
        for key, value, least in (("height", height, self.min_height), ("width", width, self.min_width)):
            if value < least:
                raise ConfigError(
                    f"model.input_{key} is {value}, but backbone {backbone} needs at least {least}: "
                    f"set model.input_{key}={least} or more"
                )
            if value % self.multiple:
                nearest = round(value / self.multiple) * self.multiple
                raise ConfigError(
                    f"model.input_{key} is {value}, but backbone {backbone} needs a multiple of {self.multiple}: "
                    f"set model.input_{key}={nearest}, for example"
                )


class Backbone(nn.Module):
    """Base of the backbones: (B, input_channel, H, W) images in [-1, 1] to a (B, out_channels, H', W') map.

    W' is what becomes time: the recogniser averages over H'. A subclass sets `out_channels`, and `limits` where some
    sizes do not work.
    """

    limits = Limits()
    out_channels: int

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        raise NotImplementedError


BACKBONES: Registry[Callable[[ModelSpec], Backbone]] = Registry("backbone")
