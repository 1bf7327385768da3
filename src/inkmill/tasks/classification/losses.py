"""Losses of classifiers: cross-entropy, binary cross-entropy, focal and asymmetric, each blind to unknown labels.

Targets are float (B, C): 1 present, 0 absent, anything between for mixed images, -1 unknown. The binary losses are the
mean over images of the *sum* over known classes, divided by the number of classes: so the learning rate depends neither
on the batch size nor on how many classes there are, where the reference code of the asymmetric loss sums over both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

LossName = Literal["auto", "ce", "bce", "focal", "asl"]
Loss = Callable[..., Tensor]
"""From logits (B, C) and targets (B, C) to the batch's mean loss, a float32 scalar."""

MAX_POSITIVE_WEIGHT = 20.0
"""Cap of negatives / positives in `bce`: a class with one positive in 10,000 would drown all others."""


def make_loss(name: LossName, exclusive: bool, smoothing: float = 0.0) -> Loss:
    """Return a loss by name.

    Args:
        name: "auto" is "ce" for exclusive classes and "asl" for others.
        exclusive: whether an image has exactly one class.
        smoothing: share of a label that "ce" spreads over all classes.
    """
    if name == "auto":
        name = "ce" if exclusive else "asl"
    if name == "ce":
        return partial(cross_entropy, smoothing=smoothing)
    if name == "bce":
        return binary_cross_entropy
    return focal if name == "focal" else asymmetric


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Softmax cross-entropy; an image whose class is unknown does not count."""
    known = (targets >= 0).all(dim=1)
    wanted = targets.clamp_min(0) * (1 - smoothing) + smoothing / targets.shape[1]
    each = -(wanted * logits.float().log_softmax(dim=1)).sum(dim=1)
    return (each * known).sum() / known.sum().clamp_min(1)


def binary_cross_entropy(logits: Tensor, targets: Tensor, positive_weight: Tensor | None = None) -> Tensor:
    """Binary cross-entropy; `positive_weight` (C,) multiplies the part of the positives."""
    each = functional.binary_cross_entropy_with_logits(
        logits.float(), targets.clamp_min(0), reduction="none", pos_weight=positive_weight
    )
    return _mean_of_known(each, targets)


def focal(logits: Tensor, targets: Tensor, gamma: float = 2.0, alpha: float = 0.25) -> Tensor:
    """Focal loss (Lin et al. 2017): easy decisions count little; `alpha` weighs positives, 1 - alpha negatives."""
    logits, wanted = logits.float(), targets.clamp_min(0)
    each = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    probability = logits.sigmoid()
    missed = probability * (1 - wanted) + (1 - probability) * wanted
    return _mean_of_known(each * missed**gamma * (alpha * wanted + (1 - alpha) * (1 - wanted)), targets)


def asymmetric(
    logits: Tensor, targets: Tensor, gamma_negative: float = 4.0, gamma_positive: float = 1.0, clip: float = 0.05
) -> Tensor:
    """Asymmetric loss (ASL, Ridnik et al. 2021) with its paper's defaults.

    Easy negatives count less than easy positives, and those below `clip` not at all. The focusing weight is a constant
    to the gradient, as in the reference code, whose way to get there (switching autograd off and on for the whole
    process) is not taken over.
    """
    logits, wanted = logits.float(), targets.clamp_min(0)
    present = logits.sigmoid()
    absent = (1 - present + clip).clamp_max(1)
    each = -(wanted * present.clamp_min(1e-8).log() + (1 - wanted) * absent.clamp_min(1e-8).log())
    with torch.no_grad():
        sureness = present * wanted + absent * (1 - wanted)
        focus = (1 - sureness) ** (gamma_positive * wanted + gamma_negative * (1 - wanted))
    return _mean_of_known(each * focus, targets)


def positive_weights(positives: Tensor, known: Tensor, cap: float = MAX_POSITIVE_WEIGHT) -> Tensor:
    """Return negatives / positives of each class, between 1 / cap and cap: float32 (C,).

    Args:
        positives: (C,), how many samples show the class.
        known: (C,), of how many samples it is known.
        cap: the largest weight; a class without positives has the weight 1.
    """
    ratio = (known - positives).float() / positives.clamp_min(1).float()
    return torch.where(positives > 0, ratio.clamp(1 / cap, cap), torch.ones_like(ratio))


def _mean_of_known(each: Tensor, targets: Tensor) -> Tensor:
    return (each * (targets >= 0)).sum(dim=1).mean() / targets.shape[1]
