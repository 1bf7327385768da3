"""The loader whose samples are drawn on the training device: nothing is read, decoded or copied.

Where it stands is arithmetic like everywhere: batch `number` of epoch `epoch` is batch `epoch * len + number` of an
endless stream. In a mix with real sets of several image sizes, each of its batches has the size of theirs.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.plan import LoadPlan, StageClock
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.order import BatchOrder
from inkmill.data.types import Batch, Texts
from inkmill.errors import ConfigError
from inkmill.synth.device import DeviceChanges, DeviceEngine
from inkmill.synth.source import SyntheticSource
from inkmill.synth.stream import Drawn, SampleStream, Size

_CUT = " synthetic texts lost characters that no tried font has"


class SyntheticLoader(Loader):
    """Draws each batch on the device when it is asked for.

    Args:
        plan: its source is a SyntheticSource, whose settings say how images are changed once they are drawn; samples
            are in no other order than their numbers'.
        device: a torch device or its name.

    Raises:
        ConfigError: `plan.resize` pads to a free width; a GPU without Triton.
        InkmillError: fonts, texts or pictures that cannot be used.
    """

    def __init__(self, plan: LoadPlan, device: torch.device | str) -> None:
        if plan.resize.mode == "height":
            raise ConfigError("synthetic text has no free widths: use input_resize=aspect, pad or stretch")
        assert isinstance(plan.source, SyntheticSource)
        super().__init__(replace(plan, augmentation=None, cache=CacheConfig(), bucket_widths=None), "gpu")
        self.memory = None
        self.device = torch.device(device)
        if self.device.type == "cuda":
            from inkmill.data.loaders.device import GpuIdle

            self.gpu_idle = GpuIdle(self.device)
        engine = plan.source.engine
        self.stats.notes.extend(engine.notes)
        self._engine = DeviceEngine(engine, self.device)
        self._changes = DeviceChanges(engine.changes, self.device) if engine.changes is not None else None
        self._stream = SampleStream(
            *(self._engine, plan.seed, plan.resize.sizes(), self._order.global_batch, self._changes),
            plan.rank,
            plan.world_size,
        )
        self._leader: BatchOrder | None = None
        self._widths: tuple[int, NDArray[np.int64]] | None = None  # of the leader's batches in one epoch
        self._length = len(self._order)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._length

    @property
    def sizes(self) -> list[Size]:
        """The image sizes, height and width, that batches have where they follow no other loader."""
        return self._stream.used_sizes

    def follow(self, order: BatchOrder) -> None:
        """Give batches the image sizes of those of another loader, with which they are mixed, an epoch as long."""
        self._leader, self._length = order, len(order)

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        for number in range(first, len(self)):
            clock = StageClock(number)
            with clock.whole("read"):
                size, drawn = self._next(epoch, number)
            with clock.whole("augment"):
                collated = CollatedBatch(self._batch(size, drawn), [], 0, 0, 0)
            collated.stages = clock.seconds()
            self._note_cut()
            yield collated

    def _next(self, epoch: int, number: int) -> tuple[Size, Drawn]:
        if self._leader is None:
            return self._stream.at(epoch * len(self) + number)
        # How many batches of this width came before: every epoch of the leader has as many of each.
        if self._widths is None or self._widths[0] != epoch:
            self._widths = epoch, self._leader.widths(epoch)
        widths = self._widths[1]
        width = int(widths[number])
        before = epoch * np.count_nonzero(widths == width) + np.count_nonzero(widths[:number] == width)
        return (self.plan.resize.rows(width), width), self._stream.of_size(width, int(before))

    def _batch(self, size: Size, drawn: Drawn) -> Batch:
        if self.gpu_idle is not None:
            self.gpu_idle.mark_generating()
        resize = self.plan.resize
        widths = np.full(len(drawn.index), size[1], np.int32)
        if resize.mode == "pad":
            widths = np.ceil(size[0] * drawn.aspects).clip(1, size[1]).astype(np.int32)
        padded = widths if resize.mode == "pad" else None
        images = self._engine.images(drawn.params, size, resize.channels, padded)
        if self._changes is not None and drawn.changed is not None:
            images = self._changes.apply(images, drawn.changed)
        keys = [f"synthetic-{number}" for number in drawn.index.tolist()]
        return Batch(images, widths, Texts(drawn.texts), keys, drawn.index)

    def _note_cut(self) -> None:
        """Say of how many texts characters were left out: no font that was tried has them."""
        notes = [note for note in self.stats.notes if not note.endswith(_CUT)]
        if self._stream.cut:
            notes.append(f"{self._stream.cut:,} of {self._stream.drawn:,}{_CUT}")
        self.stats.notes[:] = notes

    def close(self) -> None:
        """Give the rows' memory back; iterating again draws them again."""
        self._stream.close()
        super().close()
