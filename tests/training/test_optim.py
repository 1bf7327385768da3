from __future__ import annotations

import pytest
import torch
from torch import nn

from inkmill.config.train import OptimSpec
from inkmill.training.optim import Schedule, build_optimizer


def rates(spec: OptimSpec, steps_per_epoch: int = 10, epochs: int = 10) -> list[float]:
    schedule = Schedule(spec, steps_per_epoch, epochs)
    return [schedule.learning_rate(step) for step in range(steps_per_epoch * epochs)]


def test_constant_stays() -> None:
    assert set(rates(OptimSpec(lr=0.5))) == {0.5}


def test_cosine_falls_from_the_rate_to_a_hundredth() -> None:
    line = rates(OptimSpec(lr=0.1, lr_scheduler="cosine", min_lr=0.01))
    assert line[0] == pytest.approx(0.1)
    assert line[-1] == pytest.approx(0.001)
    assert line == sorted(line, reverse=True)


def test_one_cycle_rises_then_falls() -> None:
    line = rates(OptimSpec(lr=0.1, lr_scheduler="one_cycle"))
    peak = line.index(max(line))
    assert peak == 30
    assert line[peak] == pytest.approx(0.1)
    assert line[0] == pytest.approx(0.004)
    assert line[: peak + 1] == sorted(line[: peak + 1])
    assert line[peak:] == sorted(line[peak:], reverse=True)


def test_multistep_falls_after_the_named_epochs_in_taos_spelling_too() -> None:
    line = rates(OptimSpec(lr=1.0, lr_scheduler="MultiStep", lr_steps=[3, 6], lr_decay=0.1))
    assert [line[29], line[30], line[60]] == pytest.approx([1.0, 0.1, 0.01])


def test_warm_up_rises_over_its_epochs_under_every_schedule() -> None:
    for name in ("constant", "cosine", "multistep", "plateau"):
        line = rates(OptimSpec(lr=1.0, lr_scheduler=name, warmup_epochs=0.5))
        assert line[:5] == sorted(line[:5])
        assert line[0] < 0.2
        assert line[5] == pytest.approx(1.0)


def test_plateau_falls_after_patience_and_not_below_its_floor() -> None:
    schedule = Schedule(OptimSpec(lr=1.0, lr_scheduler="AutoReduce", patience=1, min_lr=0.05), 10, 10)
    for loss in (1.0, 1.0, 1.0):
        schedule.validated(loss, 0.0)
    assert schedule.learning_rate(0) == pytest.approx(0.1)
    for _ in range(10):
        schedule.validated(1.0, 0.0)
    assert schedule.learning_rate(0) == pytest.approx(0.05)


def test_plateau_goes_on_after_a_resume_as_if_nothing_had_happened() -> None:
    spec = OptimSpec(lr=1.0, lr_scheduler="plateau", patience=2)
    whole, first, second = (Schedule(spec, 10, 10) for _ in range(3))
    losses = [1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95]
    for loss in losses:
        whole.validated(loss, 0.0)
    for loss in losses[:4]:
        first.validated(loss, 0.0)
    second.load_state_dict(first.state_dict())
    for loss in losses[4:]:
        second.validated(loss, 0.0)
    assert second.learning_rate(50) == whole.learning_rate(50) < 1.0


@pytest.mark.parametrize("name", ["adadelta", "adam", "adamw"])
def test_every_optimiser_learns_and_decays_only_matrices(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = build_optimizer(model, OptimSpec(name=name, lr=1.0 if name == "adadelta" else 0.01, weight_decay=0.1))
    decays = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {2: 0.1, 1: 0.0}
    data, goal = torch.randn(64, 4), torch.randn(64, 1)
    losses = []
    for _ in range(30):
        loss = (model(data) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
