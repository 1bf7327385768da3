"""Changes that a loader leaves to the training device: what to draw, not yet drawn.

Drawing a strong augmentation keeps a core busy for half as long as decoding the picture. A GPU draws what it needs
where it needs it, so nothing of it passes through workers; who augments elsewhere asks for the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.draw import Augmentation
from inkmill.data.augment.table import AugmentParams


@dataclass(frozen=True, eq=False)
class DeferredAugmentation:
    """What is to happen to a batch.

    Attributes:
        augmentation: what to draw.
        seed, epoch: of the run.
        index: int64 (B,), positions of the samples in the source.
        height, width: size of the resized images in pixels.
        batch_size: rows of a full batch; a device that compiles for it fills shorter ones up.
    """

    augmentation: Augmentation
    seed: int
    epoch: int
    index: NDArray[np.int64]
    height: int
    width: int
    batch_size: int

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def table(self) -> AugmentParams:
        """The numbers, drawn on the CPU."""
        return self.augmentation.draw(self.seed, self.epoch, self.index, self.height, self.width)
