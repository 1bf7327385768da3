"""What stands in the base class: the order of ranks, what a state must fit, counts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Batch
from inkmill.errors import DataError


def test_ranks_share_each_epoch(captcha_plan: Callable[..., LoadPlan]) -> None:
    alone = list(make_loader(captcha_plan(batch_size=16)))
    for world in (2, 4):
        plans = [captcha_plan(batch_size=16 // world, rank=rank, world_size=world) for rank in range(world)]
        for whole, *parts in zip(alone, *(make_loader(plan) for plan in plans), strict=True):
            assert [key for part in parts for key in part.keys] == whole.keys
            assert np.array_equal(np.concatenate([part.images for part in parts]), whole.images)


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
