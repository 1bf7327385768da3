"""A guide for CTC: an attention decoder that is trained beside the head, and is not there when the model reads.

CTC alone learns slowly where a character is: all alignments are as good as one another. A decoder that is told the text
so far and must say the next character asks the features for one place at a time, and what it teaches them stays when it
is gone (GTC, Hu et al. 2020, arXiv:2002.01276; PP-OCR's NRTR branch). One transformer layer, taught with the true text,
so that all its steps are one pass: no step waits for the one before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.nn.init import initialise

_WIDTH, _HEADS = 256, 8
_SMOOTHING = 0.1
_IGNORED = -1


class AttentionGuide(nn.Module):
    """(B, T, C) features and true class ids (B, L) to the scores of each next character, (B, L + 1, K).

    Class 0, the blank of CTC, is the start here, and the end.

    Args:
        in_channels: C.
        num_classes: K of the CTC head.
        max_label_length: L, the longest text.
    """

    def __init__(self, in_channels: int, num_classes: int, max_label_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, _WIDTH)
        self.places = nn.Parameter(torch.randn(max_label_length + 1, _WIDTH) * 0.02)
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(_WIDTH) for _ in range(4))
        self.before = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.before_out = nn.Linear(_WIDTH, _WIDTH)
        self.query = nn.Linear(_WIDTH, _WIDTH)
        self.seen = nn.Linear(in_channels, 2 * _WIDTH)
        self.seen_out = nn.Linear(_WIDTH, _WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))
        self.classes = nn.Linear(_WIDTH, num_classes)
        initialise(self)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the scores; `targets` are int64, padded with 0."""
        # 1. Each step is told the characters before it, of which the first is the start.
        x = self.embedding(F.pad(targets, (1, 0))) + self.places[: targets.shape[1] + 1]
        query, key, value = _heads(self.before(self.norm1(x)), 3)
        x = x + self.before_out(_joined(F.scaled_dot_product_attention(query, key, value, is_causal=True)))
        # 2. It looks at the features.
        (query,) = _heads(self.query(self.norm2(x)), 1)
        key, value = _heads(self.seen(features), 2)
        x = x + self.seen_out(_joined(F.scaled_dot_product_attention(query, key, value)))
        # 3. And says what comes next.
        x = x + self.mlp(self.norm3(x))
        logits: Tensor = self.classes(self.norm4(x))
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy over characters and ends, labels smoothed by 0.1; nothing waits for a GPU."""
        following = F.pad(targets, (0, 1))
        ended = F.pad(targets == 0, (1, 0))  # no character before this step, but for the first: it is padding
        following = following.masked_fill(ended, _IGNORED)
        return F.cross_entropy(
            logits.float().flatten(0, 1), following.flatten(), ignore_index=_IGNORED, label_smoothing=_SMOOTHING
        )


def _heads(x: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Return `parts` tensors (B, heads, N, width of a head) of (B, N, parts * width)."""
    batch, tokens, _ = x.shape
    return x.view(batch, tokens, parts, _HEADS, _WIDTH // _HEADS).permute(2, 0, 3, 1, 4).unbind(0)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)
