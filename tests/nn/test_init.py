from __future__ import annotations

import torch
from torch import nn

from inkmill.nn.backbones.fan import ConvNeXtBlock
from inkmill.nn.init import initialise


def test_norms_and_layer_scales_keep_their_start() -> None:
    block = ConvNeXtBlock(8)
    initialise(block)
    assert torch.equal(block.norm.weight, torch.ones(8))
    assert torch.equal(block.scale, torch.full((8,), 1e-6))


def test_an_lstm_starts_remembering() -> None:
    lstm = nn.LSTM(5, 7, bidirectional=True)
    initialise(lstm)
    for suffix in ("", "_reverse"):
        bias = getattr(lstm, f"bias_ih_l0{suffix}") + getattr(lstm, f"bias_hh_l0{suffix}")
        assert torch.equal(bias, torch.tensor([0.0] * 7 + [1.0] * 7 + [0.0] * 14))
        gate = getattr(lstm, f"weight_hh_l0{suffix}")[:7]
        assert torch.allclose(gate @ gate.T, torch.eye(7), atol=1e-5)
