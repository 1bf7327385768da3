from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.tasks.recognition.heads import CTCHead, HeadSpec

HEAD = CTCHead(HeadSpec(in_channels=8, num_classes=4, max_label_length=6, hidden_size=8))


@settings(max_examples=60)
@given(
    labels=st.lists(st.lists(st.integers(1, 3), min_size=0, max_size=6), min_size=1, max_size=5),
    steps=st.integers(1, 8),
)
def test_infeasible_targets_are_exactly_those_of_infinite_loss(labels: list[list[int]], steps: int) -> None:
    lengths = torch.tensor([len(label) for label in labels])
    targets = torch.tensor([label + [0] * (6 - len(label)) for label in labels])
    log_probs = torch.zeros(steps, len(labels), 4).log_softmax(2)
    each = torch.nn.functional.ctc_loss(
        log_probs, targets, torch.full_like(lengths, steps), lengths, reduction="none", zero_infinity=False
    )
    assert HEAD.infeasible(steps, targets, lengths).tolist() == each.isinf().tolist()


def test_a_target_that_does_not_fit_leaves_the_gradient_of_the_others_alone() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets, lengths = torch.tensor([[1, 1, 1], [1, 2, 0]]), torch.tensor([3, 2])
    loss = HEAD.loss(logits, targets, lengths)
    loss.backward()
    assert HEAD.infeasible(3, targets, lengths).tolist() == [True, False]
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad[0].abs().sum() == 0
    assert logits.grad[1].abs().sum() > 0


def test_read_gives_the_best_class_and_its_softmax() -> None:
    ids, probability = HEAD.read(torch.tensor([[[0.0, 0.0, 3.0, 0.0], [9.0, 0.0, 0.0, 0.0]]]))
    assert ids.tolist() == [[2, 0]]
    assert torch.allclose(probability[0, 0], torch.tensor([0.0, 0, 3, 0]).softmax(0)[2])
