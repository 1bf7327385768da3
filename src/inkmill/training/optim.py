"""Optimisers and learning-rate schedules: a schedule is a pure function of the step, so resuming needs no history."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from inkmill.config.train import OptimSpec

ONE_CYCLE_WARMUP = 0.3
"""Share of the run over which one_cycle rises (Smith & Topin 2018)."""
FLOOR = 0.01
"""Where cosine and one_cycle end, as a share of the learning rate, unless min_lr is smaller."""


_OF_THE_DEVICE = ("lr", "capturable", "foreach", "fused")
"""Of a group: how its device computes, and the learning rate, which the schedule sets before each step."""


def build_optimizer(model: nn.Module, spec: OptimSpec, capturable: bool = False) -> Optimizer:
    """Return the optimiser of `spec`; weight decay spares biases and norms (every tensor of one dimension).

    Args:
        model: on the device that it is trained on.
        spec: the optimiser's section.
        capturable: its steps can be recorded as a CUDA graph: the learning rate is a number on the GPU.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": spec.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    on_gpu = any(p.is_cuda for p in parameters)
    rate = torch.tensor(spec.rate, device=parameters[0].device) if capturable else spec.rate
    if spec.name == "adadelta":
        return torch.optim.Adadelta(groups, lr=rate, rho=0.95, eps=1e-8, foreach=on_gpu, capturable=capturable)
    kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=rate, betas=(spec.momentum, 0.999), fused=on_gpu, capturable=capturable)


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimiser as any device can take it up."""
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        for name in _OF_THE_DEVICE:
            group.pop(name, None)
    return state


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Take up a saved state, whatever device it comes from."""
    own = [{name: group[name] for name in _OF_THE_DEVICE if name in group} for group in optimizer.param_groups]
    groups = [{**saved, **mine} for saved, mine in zip(state["param_groups"], own, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})
    for group, mine in zip(optimizer.param_groups, own, strict=True):
        group.update(mine)  # torch has copied the tensor of the learning rate


class Schedule:
    """Sets the learning rate before each step.

    Args:
        spec: the optimiser's section.
        steps_per_epoch: optimiser steps of an epoch.
        num_epochs: epochs of the whole run.
    """

    def __init__(self, spec: OptimSpec, steps_per_epoch: int, num_epochs: int) -> None:
        self.spec = spec
        self.steps_per_epoch = max(1, steps_per_epoch)
        self.total_steps = max(1, steps_per_epoch * num_epochs)
        self.warmup_steps = round(spec.warmup_epochs * steps_per_epoch)
        self._plateau = {"factor": 1.0, "best": math.inf, "waited": 0}

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of optimiser step `step`, counted from 0."""
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.spec.rate * warmup * self._factor(step)

    def apply(self, optimizer: Optimizer, step: int) -> float:
        """Set the learning rate of every group for `step` and return it."""
        rate = self.learning_rate(step)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # the GPU is not waited for
            else:
                group["lr"] = rate
        return rate

    def validated(self, val_loss: float, val_acc: float) -> None:
        """Tell plateau how a validation went; the other schedules do not listen."""
        if self.spec.lr_scheduler != "plateau":
            return
        value = val_loss if self.spec.lr_monitor == "val_loss" else -val_acc
        state = self._plateau
        if value < state["best"]:
            state.update(best=value, waited=0)
            return
        state["waited"] += 1
        if state["waited"] > self.spec.patience:
            lowest = min(1.0, self.spec.min_lr / self.spec.rate)
            state.update(factor=max(lowest, state["factor"] * self.spec.lr_decay), waited=0)

    def state_dict(self) -> dict[str, Any]:
        """Return what plateau has seen."""
        return dict(self._plateau)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what plateau had seen."""
        self._plateau = dict(state)

    def _factor(self, step: int) -> float:
        match self.spec.lr_scheduler:
            case "cosine":
                return _cosine(self._progress(step, self.warmup_steps), self._floor())
            case "one_cycle":
                rise = ONE_CYCLE_WARMUP * self.total_steps
                if step < rise:
                    return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * step / rise)) / 2
                return _cosine(self._progress(step, rise), self._floor())
            case "multistep":
                epoch = step // self.steps_per_epoch
                return self.spec.lr_decay ** sum(epoch >= at for at in self.spec.lr_steps)
            case "plateau":
                return self._plateau["factor"]
            case "constant":
                return 1.0

    def _progress(self, step: int, start: float) -> float:
        return min(1.0, max(0.0, step - start) / max(1.0, self.total_steps - 1 - start))

    def _floor(self) -> float:
        return min(FLOOR, self.spec.min_lr / self.spec.rate)


def _cosine(progress: float, floor: float) -> float:
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
