"""The exponential moving average of a model's weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

RISE = 2000
"""Updates over which the decay rises, so that the first, poor weights are forgotten."""


class WeightAverage:
    """Averages the weights after every step; buffers (BatchNorm's statistics) are averaged too.

    Args:
        model: the model whose weights are averaged.
        decay: final decay; the decay of update n is decay * (1 - exp(-n / 2000)).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights of `model`."""
        self.updates += 1
        decay = self.decay * (1 - math.exp(-self.updates / RISE))
        mine: list[Tensor] = []
        theirs: list[Tensor] = []
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                mine.append(self.weights[name])
                theirs.append(tensor.detach())
            else:
                self.weights[name].copy_(tensor)
        torch._foreach_lerp_(mine, theirs, 1 - decay)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Give `model` the averaged weights for the length of a `with`."""
        own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self.weights)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the count of updates, without which a resumed decay would begin at its first value."""
        return {"updates": self.updates, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved average."""
        self.updates = state["updates"]
        for name, tensor in self.weights.items():
            tensor.copy_(state["weights"][name])
