from __future__ import annotations

import torch
from torch import nn

from inkmill.training.ema import WeightAverage


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
        model[1].num_batches_tracked.add_(1)  # type: ignore[union-attr,operator]


def test_average_lies_between_old_and_new_weights_and_integers_are_copied() -> None:
    model = small_model()
    old = model[0].weight.detach().clone()  # type: ignore[union-attr,operator]
    average = WeightAverage(model, decay=0.9999)
    for _ in range(2000):
        average.update(model)
    move(model)
    average.update(model)
    inside = average.weights["0.weight"]
    assert bool(((inside > old) & (inside < old + 1)).all())
    assert int(average.weights["1.num_batches_tracked"]) == 1


def test_applied_weights_are_taken_back() -> None:
    model = small_model()
    average = WeightAverage(model, decay=0.9)
    move(model)
    own = model[0].weight.detach().clone()  # type: ignore[union-attr,operator]
    with average.applied_to(model):
        assert torch.equal(model[0].weight, average.weights["0.weight"])  # type: ignore[union-attr]
    assert torch.equal(model[0].weight, own)  # type: ignore[union-attr]


def test_resumed_average_keeps_its_count_and_so_its_decay() -> None:
    model = small_model()
    whole = WeightAverage(model, decay=0.999)
    for _ in range(500):
        whole.update(model)
    resumed = WeightAverage(model, decay=0.999)
    resumed.load_state_dict(whole.state_dict())
    move(model)
    whole.update(model)
    resumed.update(model)
    assert resumed.updates == 501
    assert all(torch.equal(whole.weights[name], resumed.weights[name]) for name in whole.weights)
