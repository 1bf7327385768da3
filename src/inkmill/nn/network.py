"""What every task's model has in common: a backbone that reads images, perhaps a rectifier before it, and the rest.

Pruning, the simulation of int8 and the reading of pruned files work on this alone. A task's model subclasses `Network`
and says here what they cannot know: which of its layers read the backbone's map, and how it is run.
"""

from __future__ import annotations

from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones.base import Backbone
from inkmill.nn.rectifiers.tps import TPS


class Network(nn.Module):
    """Base of the models that tasks build.

    Attributes:
        spec: what it was built from.
        backbone: float (B, C, H, W) images in [-1, 1] to a (B, channels, H', W') map.
        rectifier: images to images of the same size; `nn.Identity` where nothing is straightened.
    """

    spec: ModelSpec
    backbone: Backbone
    rectifier: nn.Module

    def image_parts(self) -> list[nn.Module]:
        """Return the parts that are run on images directly, in the order of running."""
        localisation = [self.rectifier.localisation] if isinstance(self.rectifier, TPS) else []
        return [*localisation, self.backbone]

    def feature_axes(self) -> dict[str, int]:
        """Return the tensors that have one column a channel of the backbone's map: name -> dimension of the columns.

        The channels come first in that dimension; the first tensor named has nothing else in it.
        """
        raise NotImplementedError

    def probe(self, images: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Return what the model gives for `images` at the least cost, and the shape that this must have.

        Raises:
            RuntimeError, ValueError, IndexError: layers whose sizes do not fit one another.
            ConfigError: an input size that the model cannot take.
        """
        raise NotImplementedError

    def full_pass(self, images: Tensor) -> Tensor:
        """Return the outputs for `images`, with every step that reading can take: what its cost is counted on."""
        raise NotImplementedError
