"""What every loader promises: the same batches, exact epochs, exact resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from inkmill.data.loaders import Loader, LoadPlan, make_loader
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Batch
from inkmill.errors import DataError

KINDS = [(0, "auto"), (1, "workers"), (2, "workers")]


@pytest.fixture(params=KINDS, ids=["inline", "one-worker", "two-workers"], scope="module")
def loader(request: pytest.FixtureRequest, captcha_plan: Callable[..., LoadPlan]) -> Iterator[Loader]:
    with make_loader(captcha_plan(), *request.param) as loader:
        yield loader


@pytest.fixture(scope="module")
def reference(captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any]) -> list[Any]:
    """Three epochs of the inline loader."""
    loader = make_loader(captcha_plan())
    return [snapshot(loader) for _ in range(3)]


def test_every_loader_gives_the_same_batches(
    loader: Loader, reference: list[Any], snapshot: Callable[..., Any]
) -> None:
    loader.set_epoch(0)
    assert len(loader) == 9
    assert [snapshot(loader) for _ in range(3)] == reference


def test_three_epochs_lose_and_repeat_nothing(loader: Loader) -> None:
    loader.set_epoch(10)
    orders = []
    for _ in range(3):
        batches = list(loader)
        assert [len(batch) for batch in batches] == [8] * 8 + [3]
        orders.append([key for batch in batches for key in batch.keys])
        assert sorted(orders[-1]) == sorted(loader.plan.source.key(i) for i in range(67))
    assert orders[0] != orders[1] != orders[2]
    assert loader.epoch == 12


def test_labels_belong_to_their_pictures(loader: Loader) -> None:
    batch = next(iter(loader))
    assert all(key.startswith(f"images/{text}.") for key, text in zip(batch.keys, batch.texts, strict=True))
    assert [loader.plan.source.key(i) for i in batch.index] == batch.keys


@pytest.mark.parametrize(("workers", "kind"), KINDS)
def test_validation_is_the_same_each_time(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], workers: int, kind: Any
) -> None:
    plan = captcha_plan(shuffle=False)
    in_order = snapshot(make_loader(plan))
    with make_loader(plan, workers, kind) as loader:
        assert [snapshot(loader) for _ in range(3)] == [in_order] * 3
        loader.set_epoch(0)
        assert snapshot(loader) == in_order


def test_a_state_with_other_bad_samples_counts_from_its_first_batch(
    loader: Loader, captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any]
) -> None:
    loader.set_epoch(20)
    list(loader)  # batches of epoch 21 are in the making now
    key = loader.plan.source.key(5)
    state = loader.state_dict() | {"epoch": 21, "batches": 0, "blocked": {key: 5}}
    alone = make_loader(captcha_plan())
    alone.load_state_dict(state)
    clean = loader.state_dict()
    loader.load_state_dict(state)
    taken = snapshot(loader)
    loader.load_state_dict(clean)
    assert taken == snapshot(alone)
    assert key not in [name for keys, *_ in taken for name in keys]


@pytest.mark.parametrize("position", [0, 1, 5, 8, 9])
def test_resume_gives_the_remaining_batches(
    loader: Loader, reference: list[Any], snapshot: Callable[..., Any], position: int
) -> None:
    loader.set_epoch(1)
    taken = list(islice(loader, position))
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(taken) == position
    list(islice(loader, 2))  # whatever happens in between
    loader.load_state_dict(state)
    if position == 9:
        assert snapshot(loader) == reference[2]
    else:
        loader.set_epoch(1)  # a trainer says so at the start of each epoch; the position stays
        assert snapshot(loader) == reference[1][position:]


def test_state_goes_from_one_kind_of_loader_to_another(
    loader: Loader, captcha_plan: Callable[..., LoadPlan], reference: list[Any], snapshot: Callable[..., Any]
) -> None:
    inline = make_loader(captcha_plan())
    list(islice(inline, 4))
    loader.load_state_dict(inline.state_dict())
    assert snapshot(loader) == reference[0][4:]


def test_leaving_an_epoch_early_begins_the_next_one(
    loader: Loader, reference: list[Any], snapshot: Callable[..., Any]
) -> None:
    loader.set_epoch(0)
    for batches in (2, 0, 1):
        early = snapshot(islice(loader, batches))
        assert early == reference[loader.epoch][:batches]
        if batches == 0:
            loader.set_epoch(1)
    assert snapshot(loader) == reference[2]


def test_an_iteration_that_another_one_replaced_says_so(loader: Loader) -> None:
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 9
    with pytest.raises(RuntimeError, match="one iteration at a time"):
        next(first)


def test_batches_can_be_collected(loader: Loader, reference: list[Any], snapshot: Callable[..., Any]) -> None:
    loader.set_epoch(0)
    assert snapshot(list(loader)) == reference[0]


def test_a_closed_loader_starts_again(loader: Loader, reference: list[Any], snapshot: Callable[..., Any]) -> None:
    loader.close()
    loader.close()
    loader.set_epoch(2)
    assert snapshot(loader) == reference[2]


def test_ranks_share_each_epoch(captcha_plan: Callable[..., LoadPlan]) -> None:
    alone = list(make_loader(captcha_plan(batch_size=16)))
    for world in (2, 4):
        plans = [captcha_plan(batch_size=16 // world, rank=rank, world_size=world) for rank in range(world)]
        for whole, *parts in zip(alone, *(make_loader(plan) for plan in plans), strict=True):
            assert [key for part in parts for key in part.keys] == whole.keys
            assert np.array_equal(np.concatenate([part.images for part in parts]), whole.images)


def test_a_rank_without_rows_in_the_last_batch_gets_an_empty_one(captcha_plan: Callable[..., LoadPlan]) -> None:
    plans = [captcha_plan(9, batch_size=2, rank=rank, world_size=4) for rank in range(4)]
    last = [list(make_loader(plan))[-1] for plan in plans]
    assert sorted(len(batch) for batch in last) == [0, 0, 0, 1]
    assert {batch.images.shape[1:] for batch in last} == {(32, 64, 3)}


def test_state_moves_to_another_number_of_ranks(captcha_plan: Callable[..., LoadPlan]) -> None:
    two = make_loader(captcha_plan(batch_size=8, world_size=2))
    list(islice(two, 2))
    rest = []
    for rank in range(4):
        four = make_loader(captcha_plan(batch_size=4, rank=rank, world_size=4))
        four.load_state_dict(two.state_dict())
        rest.extend(key for batch in four for key in batch.keys)
    first = [key for batch in islice(make_loader(captcha_plan(batch_size=16)), 2) for key in batch.keys]
    assert len(rest) == 67 - 32
    assert not set(rest) & set(first)


def test_validation_keeps_the_sources_order(captcha_plan: Callable[..., LoadPlan]) -> None:
    plan = captcha_plan(shuffle=False)
    assert [key for batch in make_loader(plan) for key in batch.keys] == plan.source.names


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 4}, "the seed was 3 and is 4"),
        ({"batch_size": 4}, r"the global batch \(batch_size x ranks\) was 8 and is 4"),
        ({"count": 60}, "the number of samples was 67 and is 60"),
        ({"shuffle": False}, "shuffle was True and is False"),
        ({"bucket_widths": np.full(67, 64)}, "the digest of the bucket widths"),
    ],
)
def test_a_state_of_another_order_is_refused(
    captcha_plan: Callable[..., LoadPlan], changes: dict[str, Any], sentence: str
) -> None:
    state = make_loader(captcha_plan()).state_dict()
    with pytest.raises(DataError, match=sentence):
        make_loader(captcha_plan(**changes)).load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, {"version": 0}, [1]])
def test_what_is_no_state_is_refused(captcha_plan: Callable[..., LoadPlan], state: Any) -> None:
    with pytest.raises(DataError, match="not the state of a loader"):
        make_loader(captcha_plan()).load_state_dict(state)


def test_data_that_changed_are_refused(captcha_plan: Callable[..., LoadPlan]) -> None:
    loader = make_loader(captcha_plan())
    state = loader.state_dict() | {"data": "beef"}
    now = loader.plan.source.identity
    with pytest.raises(DataError, match=f"the digest of the data's keys was 'beef' and is '{now}'"):
        loader.load_state_dict(state)


def test_free_width_gives_batches_of_one_width_and_whole_epochs(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any]
) -> None:
    plan = captcha_plan(resize=Resize(32, 192, 1, "height"))
    inline, workers = make_loader(plan), make_loader(plan, 2)
    batches: list[Batch] = list(inline)
    with workers:
        assert snapshot(workers) == snapshot(batches)
    assert sorted(key for batch in batches for key in batch.keys) == sorted(plan.source.names)
    for batch in batches:
        assert batch.images.shape[2] % 32 == 0
        assert (batch.widths <= batch.images.shape[2]).all()


def test_counts_tell_what_was_loaded(captcha_plan: Callable[..., LoadPlan]) -> None:
    loader = make_loader(captcha_plan())
    list(loader)
    assert (loader.stats.images, loader.stats.batches, loader.stats.left_out) == (67, 9, 0)
    assert loader.stats.waited_s > 0


def test_an_empty_source_is_refused(captcha_plan: Callable[..., LoadPlan]) -> None:
    with pytest.raises(DataError, match="captchas holds no samples"):
        captcha_plan(0)
