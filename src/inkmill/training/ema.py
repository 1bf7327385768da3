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
        on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        # How far the next update moves the average: on a GPU a number there, for a CUDA graph reads no other.
        self._share: float | Tensor = torch.zeros((), device=next(model.parameters()).device) if on_gpu else 0.0
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights of `model`."""
        self.count()
        self.move(model)

    def count(self) -> None:
        """Count an update, which sets how far the next `move` goes."""
        self.updates += 1
        share = 1 - self.decay * (1 - math.exp(-self.updates / RISE))
        if isinstance(self._share, Tensor):
            self._share.fill_(share)
        else:
            self._share = share

    @torch.no_grad()
    def move(self, model: nn.Module) -> None:
        """Do the update that was counted: on the model's device alone, so it can be part of a CUDA graph."""
        mine: list[Tensor] = []
        theirs: list[Tensor] = []
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                mine.append(self.weights[name])
                theirs.append(tensor.detach())
            else:
                self.weights[name].copy_(tensor)
        if isinstance(self._share, Tensor):  # there is no lerp of many tensors by a number on the GPU
            further = torch._foreach_sub(theirs, mine)
            torch._foreach_mul_(further, self._share)
            torch._foreach_add_(mine, further)
        else:
            torch._foreach_lerp_(mine, theirs, self._share)

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
