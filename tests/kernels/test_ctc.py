"""The CTC kernel beside torch's own loss: on a GPU, and here by Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from inkmill.tasks.recognition.heads import CTCHead, HeadSpec

triton = pytest.importorskip("triton")

# (batch, time steps, classes, longest target)
SHAPES = [(5, 7, 4, 3), (3, 12, 9, 6), (4, 3, 5, 4), (2, 1, 3, 1), (4, 9, 3, 8), (6, 20, 6, 9)]

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_ctc import SHAPES, largest_differences
from inkmill.kernels.ctc import ctc_losses
for shape in SHAPES:
    print(*largest_differences(ctc_losses, shape, "cpu"))
"""


def largest_differences(ctc_losses, shape, device):
    """Return how far losses and gradients are from torch's, over texts of all lengths, some of which do not fit."""
    batch, steps, classes, longest = shape
    generator = torch.Generator().manual_seed(batch * steps)
    scores = torch.randn(batch, steps, classes, generator=generator).to(device)
    targets = torch.randint(1, classes, (batch, longest), generator=generator)
    lengths = torch.randint(0, longest + 1, (batch,), generator=generator)
    weights = torch.rand(batch, generator=generator).to(device)

    def losses_and_gradients(loss):
        leaf = scores.clone().requires_grad_()
        losses = loss(leaf.log_softmax(2))
        (torch.where(losses.isinf(), 0, losses) * weights).sum().backward()
        fits = losses.isfinite()
        return torch.where(fits, losses.detach(), -1), leaf.grad[fits]

    fast = losses_and_gradients(lambda logs: ctc_losses(logs, targets.to(device), lengths.to(device)))
    known = losses_and_gradients(
        lambda logs: F.ctc_loss(
            logs.transpose(0, 1), targets.to(device), torch.full_like(lengths, steps), lengths, reduction="none"
        )
    )
    return [float((a - b).abs().max()) if a.numel() else 0.0 for a, b in zip(fast, known, strict=True)]


@pytest.mark.slow
@pytest.mark.skipif(
    triton.__version__ < "3.7" and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="the interpreter of triton 3.6 makes numbers of arrays, which numpy 2.4 refuses",
)
def test_the_kernel_agrees_with_torch():
    script = SCRIPT.format(here=str(Path(__file__).parent))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    differences = [float(number) for number in done.stdout.split()]
    assert len(differences) == 2 * len(SHAPES)
    assert max(differences) < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [*SHAPES, (64, 33, 63, 25), (8, 200, 300, 90), (2, 900, 40, 400)])
def test_the_kernel_agrees_with_torch_on_a_gpu(shape):
    from inkmill.kernels.ctc import ctc_losses

    assert max(largest_differences(ctc_losses, shape, "cuda")) < 2e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_nobody_waits_for_the_gpu():
    head = CTCHead(HeadSpec(in_channels=8, num_classes=4, max_label_length=6, hidden_size=8)).cuda()
    features = torch.randn(16, 12, 8, device="cuda")
    targets, lengths = torch.randint(1, 4, (16, 6), device="cuda"), torch.randint(0, 7, (16,))
    head.loss(head(features), targets, lengths).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this mode of torch's calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        head.loss(head(features), targets, lengths).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
