"""Losses of the detector, in float32 and without a wait for the device.

DB (Liao et al. 2020): probability, threshold, and what both make together, 1 / (1 + e^(-50 (P - T))), each with a loss
of its own, 5 : 10 : 1. For the probability map there are two:

    dice_focal   Dice (the share of overlap, whatever the size of the text) and focal (Lin et al. 2017)
    bce          cross-entropy of all positives and of the hardest negatives, three for each positive, over the batch

Which negatives are the hardest is usually asked by sorting a number of values that only the device knows, which means
two waits a step. Here a histogram of the losses says from where on they count.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

LossName = Literal["dice_focal", "bce"]

STEEPNESS = 50.0
"""k of DB's step function; e^(-50 x) overflows in half precision."""
WEIGHTS = (5.0, 10.0, 1.0)
"""Of probability, threshold and binary map."""
NEGATIVES = 3.0
_BINS = 1024
_MOST = 12.0  # losses beyond it share the last bin; e^-12 is a probability of 6e-6
_ALPHA, _GAMMA = 0.25, 2.5


def detection_loss(probability: Tensor, threshold: Tensor, maps: Tensor, name: LossName) -> Tensor:
    """Return the mean loss of a batch, a float32 scalar; 0 for the threshold's part where there is no text.

    Args:
        probability: logits (B, h, w).
        threshold: logits (B, h, w).
        maps: float32 (B, 3, h, w), see targets.py.
        name: the loss of the probability map.
    """
    probability, threshold = probability.float(), threshold.float()
    text, counted, wanted = maps.unbind(1)
    # 1. The probability map.
    if name == "bce":
        first = balanced_cross_entropy(probability, text, counted)
    else:
        first = dice(probability.sigmoid(), text, counted) + focal(probability, text, counted)
    # 2. The threshold map, on and around text.
    near = (wanted > 0).float()
    level = threshold.sigmoid()
    second = ((level - wanted).abs() * near).sum() / near.sum().clamp_min(1)
    # 3. Both together.
    binary = (STEEPNESS * (probability.sigmoid() - level)).sigmoid()
    third = dice(binary, text, counted)
    return WEIGHTS[0] * first + WEIGHTS[1] * second + WEIGHTS[2] * third


def dice(found: Tensor, wanted: Tensor, counted: Tensor) -> Tensor:
    """Return 1 - 2 |found and wanted| / (|found| + |wanted|) over the batch (Milletari et al. 2016); 0 without both."""
    both = (found * wanted * counted).sum()
    either = ((found + wanted) * counted).sum()
    return 1 - (2 * both + 1) / (either + 1)


def focal(logits: Tensor, wanted: Tensor, counted: Tensor) -> Tensor:
    """Focal loss for shares (quality focal loss, Li et al. 2020): what is nearly right counts little."""
    missed = (logits.sigmoid() - wanted).abs()
    weight = (_ALPHA * wanted + (1 - _ALPHA) * (1 - wanted)) * missed**_GAMMA * counted
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (each * weight).sum() / (wanted * counted).sum().clamp_min(1)


def balanced_cross_entropy(logits: Tensor, wanted: Tensor, counted: Tensor) -> Tensor:
    """Cross-entropy of the positives and of the hardest negatives, NEGATIVES times as many."""
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    is_text = (wanted >= 0.5).float() * counted
    others = (1 - is_text) * counted
    positives = is_text.sum()
    picked = others * hardest(each.detach(), others, (NEGATIVES * positives).clamp_min(_BINS))
    return (each * (is_text + picked)).sum() / (positives + picked.sum()).clamp_min(1)


def hardest(losses: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """Return weights 0..1, like `losses`, that add up to `count`: 1 for the largest, a share for those about the last.

    Args:
        losses: from 0 on.
        among: 1 where one may be picked, else 0.
        count: a scalar on the device; where there are fewer, all of them are picked.
    """
    width = _MOST / _BINS
    bins = (losses.clamp(0, _MOST - width / 2) / width).long()
    # 1. How many there are in each bin, and in all bins above it: whole numbers, so their order does not matter.
    inside = torch.zeros(_BINS, dtype=torch.float64, device=losses.device)
    inside.scatter_add_(0, bins.flatten(), among.double().flatten())
    above = inside.sum() - inside.cumsum(0)
    # 2. What share of each bin is wanted: all, none, or of one bin a part.
    share = ((count - above) / inside.clamp_min(1)).clamp(0, 1).float()
    return share[bins]
