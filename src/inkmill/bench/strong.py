"""What augment=strong means here: the preset `scene_text` less its two local warps.

`curve` and `elastic` are left out for everyone: torchvision's ElasticTransform alone would make its row several times
slower, which would flatter the rest of the table. Peers read probabilities and ranges from the same list that inkmill
runs. Where a library has one operator for several changes (an affine map for rotation, shear, scale and shift), it is
used once, with the probability that any of them happens: less work than a chain of single operators.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import ops

_PRESET = "scene_text"
_LEFT_OUT = (ops.Curve, ops.Elastic)

AnyOp = TypeVar("AnyOp", bound=ops.Op)


def strong_ops() -> list[ops.Op]:
    """Return the changes in the order of their application."""
    return [op for op in ops.load_preset(_PRESET) if not isinstance(op, _LEFT_OUT)]


def strong_spec() -> AugmentationSpec:
    """Return the same list as inkmill's loaders take it."""
    names = {ops.OPS.get(name): name for name in ops.OPS.names()}
    return AugmentationSpec(ops=[{"op": names[type(op)], **op.model_dump()} for op in strong_ops()])


class Strength:
    """The list by kind, for the peers' own operators."""

    def __init__(self) -> None:
        self._by_kind: dict[type[ops.Op], Any] = {type(op): op for op in strong_ops()}
        self.rotate = self._one(ops.Rotate)
        self.shear = self._one(ops.Shear)
        self.scale = self._one(ops.Scale)
        self.shift = self._one(ops.Shift)
        self.perspective = self._one(ops.Perspective)
        self.brightness = self._one(ops.Brightness)
        self.contrast = self._one(ops.Contrast)
        self.saturation = self._one(ops.Saturation)
        self.hue = self._one(ops.Hue)
        self.gray = self._one(ops.Gray)
        self.invert = self._one(ops.Invert)
        self.blur = self._one(ops.Blur)
        self.noise = self._one(ops.Noise)
        self.jpeg = self._one(ops.Jpeg)
        self.cutout = self._one(ops.Cutout)

    def _one(self, kind: type[AnyOp]) -> AnyOp:
        found: AnyOp = self._by_kind[kind]
        return found

    @property
    def affine_p(self) -> float:
        """Probability that at least one of rotation, shear, scale and shift happens."""
        return 1 - math.prod(1 - op.p for op in (self.rotate, self.shear, self.scale, self.shift))

    @property
    def corner_shift(self) -> float:
        """How far perspective moves a corner at most, as a share of the picture's side."""
        return max(*self.perspective.x, *self.perspective.y) / 4

    @property
    def blur_side(self) -> int:
        """Side of the blur's kernel in pixels, cut at three sigma."""
        return 2 * math.ceil(3 * self.blur.largest) + 1

    @property
    def hue_share(self) -> tuple[float, float]:
        """The hue's range as shares of the colour circle."""
        return self.hue.degrees[0] / 360, self.hue.degrees[1] / 360

    @property
    def noise_share(self) -> tuple[float, float]:
        """The noise's range as shares of full scale."""
        return self.noise.std[0] / 255, self.noise.std[1] / 255
