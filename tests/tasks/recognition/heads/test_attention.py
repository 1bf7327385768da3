from __future__ import annotations

import pytest
import torch

from inkmill.tasks.recognition.heads import AttentionHead, HeadSpec
from inkmill.tasks.recognition.heads import attention as module

GO, END = 0, 1


@pytest.fixture
def head() -> AttentionHead:
    torch.manual_seed(3)
    made = AttentionHead(HeadSpec(in_channels=12, num_classes=6, max_label_length=7, hidden_size=16))
    torch.nn.init.normal_(made.classes.weight, std=2.0)  # decided answers, so that rows end at different steps
    return made.eval()


@pytest.fixture
def features() -> torch.Tensor:
    return torch.randn(16, 9, 12, generator=torch.Generator().manual_seed(4)) * 3


def test_stopping_early_changes_nothing_that_is_read(
    head: AttentionHead, features: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        ends = [int((head.read(head(row[None]))[0][0] == END).any()) for row in features]
        some = features[torch.tensor(ends) == 1]  # rows that end, so that the batch stops early
        calls = []
        monkeypatch.setattr(head.cell, "forward", _counting(head.cell.forward, calls))
        early = head.read(head(some))
        early_calls = len(calls)
        calls.clear()
        monkeypatch.setattr(module, "_may_look", lambda: False)
        full = head.read(head(some))
    assert len(some) > 1
    assert len(calls) == 8
    assert early_calls < 8
    assert torch.equal(early[0], full[0])
    assert torch.equal(early[1], full[1])


def _counting(function, calls):  # type: ignore[no-untyped-def]
    def counted(*args):  # type: ignore[no-untyped-def]
        calls.append(1)
        return function(*args)

    return counted


def test_after_the_end_comes_padding_of_probability_one(head: AttentionHead) -> None:
    logits = torch.full((1, 4, 6), -5.0)
    for step, best in enumerate([3, END, 4, END]):
        logits[0, step, best] = 5.0
    ids, probability = head.read(logits)
    assert ids.tolist() == [[3, END, GO, GO]]
    assert probability[0, 2:].tolist() == [1.0, 1.0]


def test_go_is_never_an_answer(head: AttentionHead) -> None:
    logits = torch.zeros(1, 1, 6)
    logits[0, 0, GO], logits[0, 0, 5] = 100.0, 1.0
    assert head.read(logits)[0].tolist() == [[5]]
    with torch.no_grad():
        head.classes.bias[GO] = 1000.0
        ids, _ = head.read(head(torch.randn(4, 5, 12)))
    assert (ids[:, 0] != GO).all()


def test_padding_counts_for_nothing_in_the_loss(head: AttentionHead) -> None:
    logits = torch.randn(1, 5, 6, requires_grad=True)
    short = head.loss(logits[:, :3], torch.tensor([[2, 3, END]]), torch.tensor([2]))
    padded = head.loss(logits, torch.tensor([[2, 3, END, GO, GO]]), torch.tensor([2]))
    padded.backward()
    assert torch.equal(short, padded)
    assert logits.grad is not None
    assert logits.grad[0, 3:].abs().sum() == 0


def test_each_step_is_told_the_true_character_before_it(head: AttentionHead, features: torch.Tensor) -> None:
    one, other = torch.tensor([[2, 3, 4, END]]), torch.tensor([[2, 5, 4, END]])
    with torch.no_grad():
        a, b = head(features[:1], one), head(features[:1], other)
    assert torch.equal(a[:, :2], b[:, :2])
    assert not torch.allclose(a[:, 2], b[:, 2])


def test_greedy_reading_agrees_with_being_taught_its_own_answer(head: AttentionHead, features: torch.Tensor) -> None:
    with torch.no_grad():
        greedy = head(features)
        ids, _ = head.read(greedy)
        taught = head(features, ids.long())
    written = ids != GO
    assert torch.allclose(greedy[written], taught[written], atol=1e-5)


def test_a_label_needs_room_for_its_end(head: AttentionHead) -> None:
    assert head.infeasible(8, torch.zeros(2, 8, dtype=torch.long), torch.tensor([7, 8])).tolist() == [False, True]
