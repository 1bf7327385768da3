"""Attention decoder: one character after the other, each looking where it wants (Shi et al. 2016).

Class 0 is GO, which starts a text and pads targets, and is never an answer; class 1 ends a text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.nn.init import initialise
from inkmill.tasks.recognition.heads.base import HEADS, Head, HeadSpec

GO, END = 0, 1
State = tuple[Tensor, Tensor]


@HEADS.register("Attn")
class AttentionHead(Head):
    """Additive attention and an LSTM cell: (B, T, C) to (B, max_label_length + 1, K).

    Runs in the precision of its weights even under autocast: sixteen-bit state, carried over many steps, drifts.
    """

    specials = 2
    taught_by_targets = True
    float_parts = ("key", "query", "score", "cell", "classes")  # small steps one after the other: int8 gains nothing

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.num_classes = spec.num_classes
        self.max_steps = spec.max_label_length + 1
        hidden = self.hidden_size = spec.hidden_size
        self.key = nn.Linear(spec.in_channels, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.cell = nn.LSTMCell(spec.in_channels + spec.num_classes, hidden)
        self.classes = nn.Linear(hidden, spec.num_classes)
        initialise(self)

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the scores at each step.

        With `targets` (B, L), characters + END padded with GO, each step is told the true character before it (teacher
        forcing) and there are L steps. Without, each is told the step's own answer before it, and once every row has
        ended the rest is not computed: rows stay zero there, which `read` never looks at.
        """
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.key.weight.dtype)
            return self._greedy(features) if targets is None else self._taught(features, targets)

    def class_axes(self) -> dict[str, tuple[int, int]]:
        """Return the tensors that have one row or column a class; the cell is told the last class as a one-hot."""
        return {**super().class_axes(), "cell.weight_ih": (1, self.cell.input_size - self.num_classes)}

    def feature_axes(self) -> dict[str, int]:
        """Return the key's weights and the cell's, which sees the features before the one-hot."""
        return {"key.weight": 1, "cell.weight_ih": 1}

    def _step(self, features: Tensor, keys: Tensor, state: State, before: Tensor) -> State:
        """Return the next state: look at the features, then move on from the class `before` (B,)."""
        weights = self.score(torch.tanh(keys + self.query(state[0])[:, None])).softmax(dim=1)  # B T 1
        seen = (weights * features).sum(dim=1)
        told = F.one_hot(before, self.num_classes).to(features.dtype)
        after: State = self.cell(torch.cat([seen, told], dim=1), state)
        return after

    def _start(self, features: Tensor) -> tuple[Tensor, State]:
        zeros = features.new_zeros(features.shape[0], self.hidden_size)
        return self.key(features), (zeros, zeros)

    def _taught(self, features: Tensor, targets: Tensor) -> Tensor:
        keys, state = self._start(features)
        told = F.pad(targets[:, :-1], (1, 0), value=GO)
        hidden = []
        for step in range(targets.shape[1]):
            state = self._step(features, keys, state, told[:, step])
            hidden.append(state[0])
        logits: Tensor = self.classes(torch.stack(hidden, dim=1))
        return logits

    def _greedy(self, features: Tensor) -> Tensor:
        keys, state = self._start(features)
        before = torch.full_like(features[:, 0, 0], GO, dtype=torch.int64)
        ended = torch.zeros_like(before, dtype=torch.bool)
        logits = []
        for _ in range(self.max_steps):
            state = self._step(features, keys, state, before)
            logits.append(self.classes(state[0]))
            before = logits[-1][:, END:].argmax(dim=1) + END  # GO is no answer
            ended = ended | (before == END)
            if _may_look() and bool(ended.all()):
                break
        return F.pad(torch.stack(logits, dim=1), (0, 0, 0, self.max_steps - len(logits)))

    def loss(self, logits: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean cross entropy over characters and ENDs; padding counts for nothing, GO is no class."""
        scores = logits[:, :, END:].float().flatten(0, 1)
        return F.cross_entropy(scores, targets.flatten() - END, ignore_index=GO - END)

    def read(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return class and probability of each step; after a row's END the class is 0 and the probability 1."""
        probability, index = logits[:, :, END:].float().softmax(dim=2).max(dim=2)
        index = index + END
        is_end = (index == END).to(torch.int32)
        over = is_end.cumsum(dim=1) - is_end > 0
        return index.masked_fill(over, GO).to(torch.int32), probability.masked_fill(over, 1.0)

    def steps(self, time_steps: int) -> int:
        """Return max_label_length + 1, whatever the image's width."""
        return self.max_steps

    def infeasible(self, steps: int, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return bool (B,): no room for the END after the characters (`lengths` count characters alone)."""
        return lengths + 1 > steps


def _may_look() -> bool:
    """Whether a decision may hang on a tensor's value: not while a graph is recorded, whatever for."""
    recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return not (
        recorded or torch._C._get_tracing_state() or torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
    )
