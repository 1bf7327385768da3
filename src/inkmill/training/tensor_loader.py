"""Batches that a model of anyone's can take: float images and encoded targets, from any of inkmill's loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from inkmill.data.loaders import Loader, LoadPlan, Stats
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.tasks.base import Task, Truth
from inkmill.tasks.model import to_device
from inkmill.tasks.recognition.codecs import Codec
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.training.batches import training_input


class TextBatch(NamedTuple):
    """What a training step needs; a tuple, so Lightning and others move it between devices as they do any.

    Attributes:
        images: float32 (B, C, H, W) in [-1, 1].
        targets: int64 (B, L), class ids as the codec has them, padded with 0.
        lengths: int64 (B,), how many of them count; on the CPU, where torch's CTC loss needs them.
        texts: the B labels, normalised.
        keys: which samples these are.
    """

    images: Tensor
    targets: Tensor
    lengths: Tensor
    texts: list[str]
    keys: list[str]


class TaskBatch(NamedTuple):
    """The same for any task.

    Attributes:
        images: float32 (B, C, H, W) in [-1, 1].
        targets: the arrays of `Task.encode`, on the images' device: for classes one of float32 (B, classes), in which
            1 is present, 0 absent and -1 unknown.
        truths: what a model should answer for each image, B of them.
        keys: which samples these are.
    """

    images: Tensor
    targets: tuple[Tensor, ...]
    truths: list[Truth]
    keys: list[str]


Tensors = TypeVar("Tensors", TextBatch, TaskBatch)


class _Loader(Generic[Tensors]):
    """An iterable of batches of tensors, one epoch a loop; position and state are the wrapped loader's.

    A batch without rows (all of them bad, or none left for this rank) is passed over where there is one rank; among
    several it comes, for they take their steps together.

    Args:
        loader: whose images are tensors on the training device: a DeviceLoader, or a DaliLoader on a GPU.
    """

    batch_sampler = None  # Lightning asks for one where there is a sampler

    def __init__(self, loader: DeviceLoader | Loader) -> None:
        self.loader = loader

    def _tensors(self, batch: Batch) -> Tensors:
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Tensors]:
        """Iterate over one epoch.

        Raises:
            CharsetError: a label holds a character that the codec does not know.
            DataError: a label that a model cannot give, or a sample cannot be loaded.
        """
        alone = self.plan.world_size == 1
        for batch in self.loader:
            if alone and not len(batch):
                continue
            yield self._tensors(batch)

    @property
    def plan(self) -> LoadPlan:
        """What is loaded."""
        return self.loader.plan

    @property
    def stats(self) -> Stats:
        """What was done so far."""
        return self.loader.stats

    @property
    def epoch(self) -> int:
        """The epoch that is, or was last, handed over."""
        return self.loader.epoch

    @property
    def sampler(self) -> _Loader[Tensors]:
        """Itself: where Lightning looks for a `set_epoch` to call at the start of each epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """See Loader.set_epoch."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See Loader.state_dict; Lightning puts it into its checkpoints."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Loader.load_state_dict."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Give back processes, threads and memory; iterating again takes them again."""
        self.loader.close()


class TensorLoader(_Loader[TextBatch]):
    """An iterable of `TextBatch`; one epoch a loop.

    Args:
        loader: see `_Loader`.
        codec: encodes the labels.
        normaliser: is applied to them first.
    """

    def __init__(self, loader: DeviceLoader | Loader, codec: Codec, normaliser: Normaliser) -> None:
        super().__init__(loader)
        self._codec, self._normaliser = codec, normaliser

    def _tensors(self, batch: Batch) -> TextBatch:
        texts = self._normaliser.apply_all(batch.texts)
        ids, lengths = self._codec.encode(texts)
        images = training_input(batch)
        return TextBatch(images, to_device(ids, images.device), torch.from_numpy(lengths), texts, batch.keys)


class TaskLoader(_Loader[TaskBatch]):
    """An iterable of `TaskBatch`; one epoch a loop.

    Args:
        loader: see `_Loader`.
        task: settled; it encodes the targets.
    """

    def __init__(self, loader: DeviceLoader | Loader, task: Task) -> None:
        super().__init__(loader)
        self._task = task

    def _tensors(self, batch: Batch) -> TaskBatch:
        truths = self._task.truths(batch.targets)
        images = training_input(batch)
        targets = tuple(to_device(array, images.device) for array in self._task.encode(truths))
        return TaskBatch(images, targets, truths, batch.keys)
