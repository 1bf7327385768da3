"""The task that every contestant gets, and what a contestant is.

The finishing line is the same for all: a uint8 batch (B, 32, 128, 3), RGB, on the training device, where normalising
is one cheap step inside the model. All read the same bytes; what is done before the clock runs (packing shards, say)
is not counted for anyone. A contestant streams batches for ever; whoever measures decides when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source

if TYPE_CHECKING:
    from torch import Tensor

Augment = Literal["none", "strong"]
AUGMENTS: tuple[Augment, ...] = ("none", "strong")

FIT = Resize(32, 128, 3)
"""The size that everyone brings pictures to."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be loaded.

    Attributes:
        source: the samples; their bytes are what every contestant reads.
        folder: scratch space for formats of a contestant's own, and for cached pictures.
        batch_size: images a batch.
        workers: processes or threads a contestant may use.
        device: the torch device that batches end on.
        augment: none or strong.
        resize: the size that pictures are brought to.
        seed: of order and augmentation, where a contestant takes one.
    """

    source: Source
    folder: Path
    batch_size: int
    workers: int
    device: str
    augment: Augment = "strong"
    resize: Resize = FIT
    seed: int = 1


Stream = Callable[[Task], "Iterator[Tensor]"]
"""A generator of batches on the task's device; closing it ends its processes and threads."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row of the table.

    Attributes:
        loader: its name.
        stream: makes the batches.
        engine: what augments.
        keep: the tier where resized pictures are kept.
        augment: none or strong.
        needs: (module, pip name) of packages it needs.
        needs_gpu: whether it can only run with a GPU.
        unfit: a reason why it cannot take part at all, or an empty string.
        note: what its work differs in.
    """

    loader: str
    stream: Stream
    engine: str
    cache: str = "none"
    augment: Augment = "strong"
    needs: tuple[tuple[str, str], ...] = ()
    needs_gpu: bool = False
    ragged: str = ""
    note: str = ""

    @property
    def title(self) -> str:
        """The row's name in charts and messages."""
        parts = (self.loader, self.engine, "" if self.cache == "none" else f"kept: {self.cache}")
        return ", ".join(p for p in parts if p) + ("" if self.augment == "strong" else " (no augmentation)")

    def missing(self, device: str) -> str | None:
        """Return why it cannot run here, in a few words, or None."""
        absent = [pip for module, pip in self.needs if not _importable(module)]
        if absent:
            return f"not installed: pip install {' '.join(absent)}" + (f" ({self.ragged})" if self.ragged else "")
        if self.needs_gpu and not device.startswith("cuda"):
            return "needs a GPU"
        return self.ragged or None


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is absent
        return False


def upload(batch: Any, device: str) -> Tensor:
    """Bring a host batch, tensor or array, to the device; pinned memory is copied without waiting."""
    import torch

    tensor = batch if isinstance(batch, torch.Tensor) else torch.from_numpy(batch)
    return tensor.to(device, non_blocking=True)
