"""The torch half of a task: what training, the torch reader and compression know of its network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.pipeline.scale import MIDDLE
from inkmill.data.types import Batch
from inkmill.nn.network import Network

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.tasks.base import Task

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Adopted:
    """What a file of pretrained weights offers.

    Attributes:
        weights: tensors under this network's names.
        task: what they were trained for; None where nobody says which classes they have.
        reason: why the rows of its output layer cannot be taken, where that is so.
        notes: what a user should know of its list of classes, one sentence each.
    """

    weights: dict[str, Tensor]
    task: Task | None
    reason: str = ""
    notes: Sequence[str] = ()


class TaskModel(Network):
    """Base of the networks that tasks build: what `Network` tells compression, and what training and reading ask.

    B images are uint8 BHWC in batches and float32 BCHW in [-1, 1] as the network's input.

    Attributes:
        training_parts: names of modules that training alone uses: no exported graph has them.
    """

    training_parts: tuple[str, ...] = ()

    # Training

    def to_targets(self, encoded: tuple[NDArray[Any], ...], batch: Batch, images: Tensor) -> Tensors:
        """Return what `loss` compares with, on the device of the images; nothing waits for the device.

        Args:
            encoded: what `Task.encode` returned.
            batch: which it was encoded from; its targets have followed the augmentation.
            images: BCHW: their device and size are those that targets such as maps must have.
        """
        return tuple(to_device(array, images.device) for array in encoded)

    def mixed(
        self, images: Tensor, targets: Tensors, seed: int, epoch: int, index: NDArray[np.int64]
    ) -> tuple[Tensor, Tensors]:
        """Return a training batch whose images have parts of one another, where the task wants that (mixup, CutMix).

        Args:
            images: uint8 (B, H, W, C), augmented.
            targets: of `to_targets`.
            seed: of the run.
            epoch: with seed and index it says all that is random.
            index: int64 (B,), positions of the samples in the source.
        """
        return images, targets

    def taught(self, targets: Tensors) -> Tensors:
        """Return what `forward` is given besides the images in training: for heads that are taught by the truth."""
        return ()

    @abstractmethod
    def forward(self, images: Tensor, *taught: Tensor) -> Any:
        """Return what `loss` takes: a tensor, or a tuple of tensors."""

    @abstractmethod
    def loss(self, outputs: Any, targets: Tensors) -> Tensor:
        """Return the mean loss of a batch, a float32 scalar, of what `forward` returned."""

    # Reading

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Return what the head reads."""

    @abstractmethod
    def outputs(self, images: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return the outputs `names` of `Task.outputs`, on the images' device, of their dtypes."""

    @abstractmethod
    def outputs_and_loss(
        self, images: Tensor, targets: Tensors, names: tuple[str, ...]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the outputs, read without help, and the loss as in training; features are computed once."""

    # What compression and fine-tuning ask

    def probe(self, images: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """See `Network.probe`; heads that take one step after the other do it with a single step."""
        outputs = self.full_pass(images)
        return outputs, (len(images), *outputs.shape[1:])

    def full_pass(self, images: Tensor) -> Tensor:
        """See `Network.full_pass`; a network whose `forward` gives several tensors returns the first."""
        outputs = self(images)
        first: Tensor = outputs if isinstance(outputs, Tensor) else outputs[0]
        return first

    def class_axes(self) -> dict[str, tuple[int, int]]:
        """Return the tensors that have one row or column a class: name -> (dimension, index of class 0 in it)."""
        return {}

    def adopt(self, weights: dict[str, Tensor], spec: Spec, where: str) -> Adopted:
        """Return what can be taken from another program's file.

        Args:
            weights: tensors by their plain names.
            spec: the spec of the run that starts from them.
            where: the file, for errors.

        Raises:
            InkmillError: what the spec says of the file cannot be.
        """
        return Adopted(weights, None, "the file does not say which classes its rows are")

    def reading_parameters(self) -> int:
        """Return how many parameters the network reads with."""
        parts = tuple(f"{name}." for name in self.training_parts)
        return sum(one.numel() for name, one in self.named_parameters() if not name.startswith(parts or "\0"))

    def described(self) -> str:
        """Return the parts of the network in a few words: "ResNet + BiLSTM + CTC"."""
        return self.spec.backbone


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array's copy on a device; nothing waits for it."""
    source = torch.from_numpy(array)
    if device.type != "cuda":
        return source.to(device)
    pinned = torch.empty(array.shape, dtype=source.dtype, pin_memory=True)
    np.copyto(pinned.numpy(), array)  # torch's own copy would wake its CPU threads
    return pinned.to(device, non_blocking=True)


def to_input(images: Tensor) -> Tensor:
    """Return uint8 BHWC images as float32 BCHW in [-1, 1]; the layout in memory stays channels-last."""
    return images.permute(0, 3, 1, 2).sub(MIDDLE).div_(MIDDLE)  # from bytes to numbers in the first of two passes
