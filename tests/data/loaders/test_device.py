"""From a loader to the device: the same values, the same position."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader

torch = pytest.importorskip("torch")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]),
]
each_device = pytest.mark.parametrize("device", DEVICES)


def on_host(loader: DeviceLoader) -> Any:
    for batch in loader:
        assert batch.images.dtype == torch.uint8
        assert batch.images.device.type == loader.device.type
        batch.images = batch.images.cpu().numpy()
        yield batch


@each_device
@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (1, "workers")])
def test_values_are_the_loaders_own(
    captcha_plan: Callable[..., LoadPlan],
    snapshot: Callable[..., Any],
    device: str,
    workers: int,
    kind: str,
) -> None:
    reference = make_loader(captcha_plan())
    with DeviceLoader(make_loader(captcha_plan(), workers, kind), device) as loader:
        assert len(loader) == 9
        for _ in range(2):
            assert snapshot(on_host(loader)) == snapshot(reference)
        collected = list(loader)
    assert [batch.images.cpu().numpy().tobytes() for batch in collected] == [
        batch.images.tobytes() for batch in reference
    ]


@each_device
@pytest.mark.parametrize("position", [0, 1, 4, 8])
def test_a_batch_on_its_way_is_not_counted(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], device: str, position: int
) -> None:
    with DeviceLoader(make_loader(captcha_plan(), 1), device) as loader:
        taken = snapshot(islice(on_host(loader), position))
        state = loader.state_dict()
        assert state["batches"] == position
        loader.load_state_dict(state)
        assert taken + snapshot(on_host(loader)) == snapshot(make_loader(captcha_plan()))


def test_after_an_epoch_the_next_one_comes(captcha_plan: Callable[..., LoadPlan]) -> None:
    loader = DeviceLoader(make_loader(captcha_plan()), "cpu")
    list(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (0, 9)
    next(iter(loader))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (1, 1)
    loader.set_epoch(7)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (7, 0)


@each_device
def test_a_batch_handed_over_stays_as_it_is_when_the_epoch_is_left(
    captcha_plan: Callable[..., LoadPlan], device: str
) -> None:
    """Its copy may be on its way when the next iteration has its place written again."""
    with DeviceLoader(make_loader(captcha_plan(shuffle=True), 1), device) as loader:
        for epoch in range(20):
            loader.set_epoch(epoch)
            first = next(iter(loader))
            next(iter(loader))
            loader.set_epoch(epoch)
            again = next(iter(loader))
            assert torch.equal(first.images, again.images)
