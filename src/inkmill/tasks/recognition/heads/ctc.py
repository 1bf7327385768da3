"""CTC: one class a time step, 0 for "nothing new here" (Graves et al. 2006)."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.nn.init import initialise
from inkmill.tasks.recognition.heads.base import HEADS, Head, HeadSpec

_HAS_TRITON = find_spec("triton") is not None  # it comes with torch where there are GPUs, except on Windows
_MAX_TARGET = 1023  # characters that the kernel of ctc_triton can hold


@HEADS.register("CTC")
class CTCHead(Head):
    """A linear layer on each time step: (B, T, C) to (B, T, K), class 0 the blank."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.classes = nn.Linear(spec.in_channels, spec.num_classes)
        initialise(self)

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the scores of every class at every step; `targets` are not looked at."""
        logits: Tensor = self.classes(features)
        return logits

    def loss(self, logits: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean over the batch of -log p(target) / length, in 32 bits.

        A target that does not fit its time steps has probability 0: it counts as 0 instead of infinity and has no
        gradient. `infeasible` says which those are; `check` and `train` leave them out and count them beforehand.
        """
        log_probs = logits.float().log_softmax(dim=2)
        if logits.is_cuda and _HAS_TRITON and targets.shape[1] <= _MAX_TARGET:
            return _loss_on_gpu(log_probs, targets, lengths)
        lengths = lengths.cpu()  # torch lays its work out there
        steps = torch.full_like(lengths, logits.shape[1])
        with torch.autocast(logits.device.type, enabled=False):
            return F.ctc_loss(
                log_probs.transpose(0, 1), targets, steps, lengths, blank=0, reduction="mean", zero_infinity=True
            )

    def steps(self, time_steps: int) -> int:
        """Return `time_steps`."""
        return time_steps

    def infeasible(self, steps: int, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return bool (B,): length + repeats > steps, for a blank must stand between two equal characters."""
        inside = torch.arange(1, targets.shape[1], device=targets.device) < lengths.to(targets.device)[:, None]
        repeats = ((targets[:, 1:] == targets[:, :-1]) & inside).sum(dim=1)
        return lengths.to(targets.device) + repeats > steps


def _loss_on_gpu(log_probs: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """Return what F.ctc_loss returns, without making the CPU wait for the GPU."""
    from inkmill.kernels.ctc import ctc_losses

    if not lengths.is_cuda:
        lengths = lengths.pin_memory().to(log_probs.device, non_blocking=True)
    losses = ctc_losses(log_probs, targets, lengths)
    return (torch.where(losses.isinf(), 0, losses) / lengths.clamp(min=1)).mean()
