"""The section `detection` of the spec."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from inkmill.config.base import Section

SHARES = {"inradius": 0.5, "shrink": 0.4}
"""What `share` is where none is given, by kernel."""


class DetectionSection(Section):
    """Finding text on whole pictures."""

    kernel: Literal["inradius", "shrink"] = "inradius"
    """What of a text the network learns to mark: all that lies deeper in it than a share of its inradius, which leaves
    the same share of the height at any length; or DB's shrunk polygon."""
    share: float | None = Field(None, gt=0, lt=1)
    """Of the inradius (0.5 by default), or DB's r (0.4)."""
    min_height: float = Field(8.0, ge=0)
    """Text lower than this, in pixels of the model's input, is ignored in learning."""
    min_visible: float = Field(0.5, ge=0, le=1)
    """Text of which a crop shows a smaller share is ignored in learning."""
    loss: Literal["dice_focal", "bce"] = "dice_focal"
    """Of the probability map: Dice and focal, or DB's cross-entropy with three hard negatives for each positive."""
    short_side: int = Field(736, ge=64, le=4096)
    """Whole pictures are read with their short side at this many pixels, enlarged twice at most."""
    long_side: int = Field(1536, ge=64, le=8192)
    """But with their long side at no more than this."""
    threshold: float = Field(0.5, gt=0, lt=1)
    """Where the probability map counts as text."""
    box_threshold: float | None = Field(None, ge=0, lt=1)
    """Regions with a lower score are left out; by default what is best on the validation set, found while training."""
    shape: Literal["quad", "polygon"] = "quad"
    """What is given for a region: the smallest turned rectangle, or its outline."""
    max_regions: int = Field(1000, ge=1, le=100_000)
    """Of a picture; the smallest of more are left out, and counted."""

    @property
    def kernel_share(self) -> float:
        """The share, given or the kernel's own."""
        return SHARES[self.kernel] if self.share is None else self.share

    @model_validator(mode="after")
    def _sides_are_in_order(self) -> DetectionSection:
        if self.long_side < self.short_side:
            raise ValueError(f"long_side={self.long_side} is less than short_side={self.short_side}")
        return self
