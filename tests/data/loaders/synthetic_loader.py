"""A loader whose images are made on the device from (seed, epoch, index): what synthetic text will be like."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.sources import Source
from inkmill.data.types import Batch, Target, Text, as_targets


@dataclass
class Words(Source):
    """Texts without files."""

    count: int
    fingerprint: str = "words"
    name: str = "words"

    def __len__(self) -> int:
        return self.count

    def key(self, index: int) -> str:
        return f"word-{index}"

    def target(self, index: int) -> Target:
        return Text(str(index))

    def image(self, index: int) -> bytes:
        raise AssertionError("a synthetic sample has no file")


class SyntheticLoader(Loader):
    def __init__(self, plan: LoadPlan, device: str) -> None:
        super().__init__(plan)
        self.memory = None
        self.device = torch.device(device)

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        resize, source = self.plan.resize, self.plan.source
        for number in range(first, len(self)):
            index = self._order.samples(epoch, number)
            images = torch.stack([self._image(epoch, int(one)) for one in index])
            targets = as_targets(source.target(one) for one in index.tolist())
            keys = [source.key(one) for one in index.tolist()]
            widths = np.full(len(index), resize.width, np.int32)
            yield CollatedBatch(Batch(images, widths, targets, keys, index), [], 0, 0, 0)

    def _image(self, epoch: int, index: int) -> torch.Tensor:
        resize = self.plan.resize
        generator = torch.Generator(self.device).manual_seed(hash((self.plan.seed, epoch, index)) % 2**63)
        shape = (resize.height, resize.width, resize.channels)
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device, generator=generator)
