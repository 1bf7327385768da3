"""Losses of the detector: what counts, how much, and that nothing else does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from inkmill.tasks.detection.losses import balanced_cross_entropy, detection_loss, dice, focal, hardest

SHAPE = (2, 16, 24)


def maps(seed: int = 0, text: float = 0.2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand((2, 3, 16, 24), generator=generator)
    kernel = (found[:, 0] < text).float()
    return torch.stack([kernel, (found[:, 1] < 0.9).float(), kernel * 0.5], dim=1)


@pytest.mark.parametrize("count", [1, 40, 200, 10_000])
def test_the_hardest_losses_are_the_largest_ones(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    losses, among = torch.rand(SHAPE, generator=generator) * 5, (torch.rand(SHAPE, generator=generator) < 0.7).float()
    picked = hardest(losses, among, torch.tensor(float(count))) * among
    there = int(among.sum())
    assert float(picked.sum()) == pytest.approx(min(count, there), abs=1e-3)
    largest = losses[among > 0].topk(min(count, there)).values
    assert float((losses * picked).sum()) == pytest.approx(float(largest.sum()), rel=0.01)


def test_balanced_cross_entropy_takes_three_negatives_for_each_positive() -> None:
    logits = torch.randn((4, 64, 64), generator=torch.Generator().manual_seed(1))
    wanted = torch.zeros_like(logits)
    wanted[:, :20, :20] = 1
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    positives = int(wanted.sum())
    hard = each[wanted == 0].topk(3 * positives).values
    expected = (each[wanted == 1].sum() + hard.sum()) / (4 * positives)
    found = balanced_cross_entropy(logits, wanted, torch.ones_like(wanted))
    assert float(found) == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("name", ["dice_focal", "bce"])
def test_what_is_ignored_changes_nothing(name: str) -> None:
    logits, level = torch.randn(SHAPE), torch.randn(SHAPE)
    target = maps()
    target[:, 2] = 0  # the threshold's mask is its own
    other = torch.where(target[:, 1] == 0, torch.randn(SHAPE) * 9, logits)
    assert not torch.equal(other, logits)
    first, second = (detection_loss(one, level, target, name) for one in (logits, other))  # type: ignore[arg-type]
    assert float(first) == pytest.approx(float(second), rel=1e-6)


@pytest.mark.parametrize("name", ["dice_focal", "bce"])
@pytest.mark.parametrize("counted", [0.0, 1.0])
def test_a_batch_without_text_has_a_finite_loss_and_gradient(name: str, counted: float) -> None:
    logits, level = (torch.randn(SHAPE, requires_grad=True) for _ in range(2))
    target = torch.zeros((2, 3, 16, 24))
    target[:, 1] = counted
    loss = detection_loss(logits, level, target, name)  # type: ignore[arg-type]
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    assert bool((logits.grad != 0).any()) == bool(counted)


@pytest.mark.parametrize("name", ["dice_focal", "bce"])
def test_losses_of_half_precision_and_of_sure_logits_are_finite(name: str) -> None:
    logits = torch.full(SHAPE, 60.0, dtype=torch.bfloat16)
    assert torch.isfinite(detection_loss(logits, -logits, maps(), name))  # type: ignore[arg-type]
    assert detection_loss(logits, -logits, maps(), name).dtype == torch.float32  # type: ignore[arg-type]


def test_the_right_map_has_next_to_no_loss_and_the_wrong_one_much() -> None:
    target = maps()
    right, counted = target[:, 0], target[:, 1]
    assert float(dice(right, right, counted)) == pytest.approx(0, abs=1e-6)
    assert float(dice(1 - right, right, counted)) > 0.99
    logits = (right * 2 - 1) * 20
    assert float(focal(logits, right, counted)) < 1e-6
    assert float(focal(-logits, right, counted)) > 10


def test_the_threshold_is_learned_where_it_counts_alone() -> None:
    target = maps()
    level = torch.zeros(SHAPE, requires_grad=True)
    logits = torch.full(SHAPE, -50.0)  # nothing is text: the binary map says nothing about the threshold
    target[:, 0] = 0
    target[:, 2] = 0
    target[:, 2, 4:8] = 0.7
    detection_loss(logits, level, target, "dice_focal").backward()
    assert (level.grad[:, 4:8] < 0).all()
    assert level.grad[:, 8:].abs().max() < 1e-6
