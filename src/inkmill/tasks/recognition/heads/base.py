"""What a head is: features to class scores, the loss on them, and the classes read off them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inkmill.registry import Registry


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What a head is built from."""

    in_channels: int
    num_classes: int
    max_label_length: int
    hidden_size: int


class Head(nn.Module):
    """Base of the heads. S is the number of output steps: T for CTC, fixed for the others; K the classes.

    Targets and lengths are those of `inkmill.tasks.recognition.codecs` for the same prediction.

    Attributes:
        specials: classes of the decoder itself, before the first character.
        taught_by_targets: whether `forward` answers differently when it is told the targets.
    """

    specials = 1
    taught_by_targets = False

    def class_axes(self) -> dict[str, tuple[int, int]]:
        """Return the tensors that have one row or column a class: name -> (dimension, index of class 0 in it)."""
        return {"classes.weight": (0, 0), "classes.bias": (0, 0)}

    def feature_axes(self) -> dict[str, int]:
        """Return the tensors that have one column a feature channel: name -> dimension of the columns.

        The channels come first in that dimension; the first tensor named has nothing else in it.
        """
        return {"classes.weight": 1}

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor:
        """(B, T, C) features to (B, S, K) scores; `targets` (B, L) are for heads that are taught with them."""
        raise NotImplementedError

    def loss(self, logits: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean loss of a batch, a float32 scalar; targets int64 (B, L), lengths int64 (B,) on any device."""
        raise NotImplementedError

    def read(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best class of each step and its probability: int32 (B, S), float32 (B, S)."""
        return best_class(logits)

    def steps(self, time_steps: int) -> int:
        """Return S for features of `time_steps` steps."""
        raise NotImplementedError

    def infeasible(self, steps: int, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return bool (B,): which targets cannot be written in S = `steps` output steps, and so teach nothing."""
        return lengths > steps


HEADS: Registry[Callable[[HeadSpec], Head]] = Registry("prediction")


def best_class(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable class and its probability, softmax taken in 32 bits."""
    probability, index = logits.float().softmax(dim=2).max(dim=2)
    return index.to(torch.int32), probability
