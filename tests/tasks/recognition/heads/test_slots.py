from __future__ import annotations

import pytest
import torch

from inkmill.tasks.recognition.heads import HeadSpec, SlotsHead


@pytest.mark.parametrize("slots", [1, 4, 6, 25])
@pytest.mark.parametrize("steps", [25, 50, 101])
def test_untrained_slots_look_along_the_line_in_order(slots: int, steps: int) -> None:
    torch.manual_seed(0)
    head = SlotsHead(HeadSpec(in_channels=8, num_classes=5, max_label_length=slots, hidden_size=8))
    weights = head.attention(torch.zeros(1, steps, 8))[0]
    centres = (weights.argmax(dim=1) + 0.5) / steps
    expected = (torch.arange(slots) + 0.5) / slots
    assert torch.allclose(weights.sum(dim=1), torch.ones(slots))
    assert (centres - expected).abs().max() <= 1.0 / steps


def test_empty_slots_are_learned_too() -> None:
    head = SlotsHead(HeadSpec(in_channels=8, num_classes=5, max_label_length=3, hidden_size=8))
    logits = torch.zeros(1, 3, 5)
    logits[0, 2, 0] = 10.0
    right = head.loss(logits, torch.tensor([[1, 2, 0]]), torch.tensor([2]))
    wrong = head.loss(logits, torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    assert right < wrong
