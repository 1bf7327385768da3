"""Fixed slots: N positions, one class each, 0 for an empty one; what suits captchas of known length.

Each slot owns a learned query that looks along the time steps (cross-attention, as in PARSeq, Bautista & Atienza 2022,
without the decoder's layers). Queries start as sinusoidal codes of (n + 1/2) / N of the width and keys carry the code
of their own place, so that before any training slot n already looks at the n-th part of the picture.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.nn.init import initialise
from inkmill.tasks.recognition.heads.base import HEADS, Head, HeadSpec

_SHARPNESS = 4.0  # starting height of the attention's peak over its mean, in logits


@HEADS.register("Slots")
class SlotsHead(Head):
    """(B, T, C) to (B, max_label_length, K)."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.slots = spec.max_label_length
        self.bands = max(4, 2 * self.slots)  # finer than the slots, so that neighbours can be told apart
        places = (torch.arange(self.slots) + 0.5) / self.slots
        self.queries = nn.Parameter(_code(places, self.bands) * (_SHARPNESS / self.bands))
        self.key = nn.Linear(spec.in_channels, 2 * self.bands)
        self.value = nn.Sequential(nn.Linear(spec.in_channels, spec.hidden_size), nn.GELU())
        self.norm = nn.LayerNorm(spec.hidden_size)
        self.classes = nn.Linear(spec.hidden_size, spec.num_classes)
        initialise(self)

    def feature_axes(self) -> dict[str, int]:
        """Return the weights of keys and values."""
        return {"key.weight": 1, "value.0.weight": 1}

    def attention(self, features: Tensor) -> Tensor:
        """Return (B, N, T) weights: where each slot looks; they sum to 1 over T."""
        steps = features.shape[1]
        places = (torch.arange(steps, device=features.device) + 0.5) / steps
        keys = self.key(features) + _code(places, self.bands).to(features.dtype)
        weights: Tensor = (self.queries.to(keys.dtype) @ keys.transpose(1, 2)).softmax(dim=2)
        return weights

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the scores of every class in every slot; `targets` are not looked at."""
        values = self.value(features)
        seen = self.attention(features).to(values.dtype) @ values
        logits: Tensor = self.classes(self.norm(seen))
        return logits

    def loss(self, logits: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean cross entropy over all slots, the empty ones too."""
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def steps(self, time_steps: int) -> int:
        """Return max_label_length, whatever the image's width."""
        return self.slots


def _code(places: Tensor, bands: int) -> Tensor:
    """Return (len(places), 2 * bands) cosines and sines of 1 to `bands` half turns over places in 0..1."""
    angle = places[:, None] * torch.arange(1, bands + 1, device=places.device) * math.pi
    return torch.cat([angle.cos(), angle.sin()], dim=1)
