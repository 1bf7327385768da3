"""Several loaders in one batch: the shares, exact epochs of the first, and exact resume of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from multiprocessing import active_children
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from captcha_source import CaptchaSource  # noqa: E402
from synthetic_loader import SyntheticLoader, Words  # noqa: E402

from inkmill.config.dataset import AugmentationSpec  # noqa: E402
from inkmill.data.augment import Augmentation  # noqa: E402
from inkmill.data.augment.torch_passes import apply_torch  # noqa: E402
from inkmill.data.loaders import Loader, LoadPlan, make_loader  # noqa: E402
from inkmill.data.loaders.device import DeviceLoader  # noqa: E402
from inkmill.data.loaders.mix import MixedLoader, split_batch  # noqa: E402
from inkmill.data.pipeline.resize import Resize  # noqa: E402
from inkmill.errors import ConfigError, DataError  # noqa: E402

Plan = Callable[..., LoadPlan]


def two_real(plan: Plan) -> Loader:
    """6 of 67 and 2 of 20 captchas a batch, the first from a process."""
    return MixedLoader([make_loader(plan(batch_size=6), 1), make_loader(plan(20, batch_size=2, seed=9))], "cpu")


def real_and_synthetic(plan: Plan) -> Loader:
    """6 captchas, and 2 of 50 images made on the device."""
    first = plan(batch_size=6)
    synthetic = SyntheticLoader(replace(first, source=Words(50), batch_size=2, seed=9), "cpu")
    return MixedLoader([make_loader(first), synthetic], "cpu")


@pytest.fixture(params=[two_real, real_and_synthetic])
def opened(request: pytest.FixtureRequest, captcha_plan: Plan) -> Iterator[Callable[[], Loader]]:
    """Return a function that opens another mix of a kind."""
    loaders: list[Loader] = []

    def open_one() -> Loader:
        loaders.append(request.param(captcha_plan))
        return loaders[-1]

    yield open_one
    for loader in loaders:
        loader.close()


def test_each_batch_has_its_share_of_every_part(opened: Callable[[], Loader]) -> None:
    loader = opened()
    batches = list(loader)
    assert len(batches) == len(loader) == 12
    assert [len(batch) for batch in batches] == [8] * 11 + [1 + 2]
    for batch in batches:
        assert batch.images.shape == (len(batch), 32, 64, 3)
        assert [int(index >= 67) for index in batch.index] == [0] * (len(batch) - 2) + [1] * 2
    assert loader.stats.images == 67 + 24


def test_the_first_part_has_exact_epochs_and_the_others_continue(opened: Callable[[], Loader]) -> None:
    loader = opened()
    seen: Counter[int] = Counter()
    for _ in range(3):
        index = np.concatenate([batch.index for batch in loader])
        assert sorted(index[index < 67]) == list(range(67))
        seen.update(index[index >= 67].tolist())
    assert max(seen.values()) - min(seen.values()) <= 1  # no epoch of theirs is cut short
    assert len(seen) == len(loader._parts[1].loader.plan.source)


@pytest.mark.parametrize("position", [0, 1, 7, 11, 12])
def test_a_mix_resumes_exactly(opened: Callable[[], Loader], snapshot: Callable[..., Any], position: int) -> None:
    whole = opened()
    epochs = [snapshot(whole) for _ in range(3)]
    part = opened()
    part.set_epoch(1)
    assert snapshot(islice(part, position)) == epochs[1][:position]
    state = json.loads(json.dumps(part.state_dict()))
    resumed = opened()
    resumed.load_state_dict(state)
    assert snapshot(resumed) == (epochs[1][position:] or epochs[2])
    list(islice(part, 2))  # whatever happens in between
    part.load_state_dict(state)
    assert snapshot(part) == (epochs[1][position:] or epochs[2])


def test_a_mix_reaches_the_device_and_resumes_there(opened: Callable[[], Loader], snapshot: Callable[..., Any]) -> None:
    expected = snapshot(opened())
    loader = DeviceLoader(opened(), "cpu")
    taken = snapshot(islice(loader, 4))
    state = loader.state_dict()
    assert state["batches"] == 4
    loader.load_state_dict(state)
    assert taken + snapshot(loader) == expected


def test_what_loaders_leave_to_the_device_is_augmented(captcha_plan: Plan) -> None:
    strong = Augmentation.from_spec(AugmentationSpec(preset="scene_text"))
    plans = [captcha_plan(batch_size=size, augmentation=strong, seed=size) for size in (5, 3)]
    with MixedLoader([make_loader(plan, augment_on="gpu") for plan in plans], "cpu") as mixed:
        batch = next(iter(mixed))
    assert batch.augmentation is None
    parts = [next(iter(make_loader(plan, augment_on="gpu"))) for plan in plans]
    shown = [apply_torch(torch.from_numpy(part.images), part.augmentation.params) for part in parts]
    assert (batch.images.int() - torch.cat(shown).int()).abs().float().mean() < 0.01


def test_bad_samples_of_a_part_are_counted_and_stay_known(captchas: Any, captcha_plan: Plan) -> None:
    lenient = captcha_plan(batch_size=6, on_bad_sample="skip", max_bad=0.1)
    bad = replace(lenient, source=CaptchaSource.first(captchas, 24, broken=frozenset({7})), batch_size=2)
    with MixedLoader([make_loader(lenient), make_loader(bad)], "cpu") as loader:
        list(loader)
        list(loader)
        assert (loader.stats.bad_samples, loader.stats.left_out) == (1, 2)
        assert loader.state_dict()["parts"][1]["blocked"] == {bad.source.key(7): 7}


def test_other_data_in_a_part_are_refused(captcha_plan: Plan) -> None:
    def mixed(count: int) -> Loader:
        parts = [make_loader(captcha_plan(batch_size=6)), make_loader(captcha_plan(count, batch_size=2))]
        return MixedLoader(parts, "cpu")

    with pytest.raises(DataError, match="of part 1, the number of samples was 20 and is 21"):
        mixed(21).load_state_dict(mixed(20).state_dict())


def test_closing_a_mix_closes_its_parts(captcha_plan: Plan) -> None:
    with closing(two_real(captcha_plan)) as loader:
        first = next(iter(loader)).keys
        assert active_children()
        loader.release()
        loader.set_epoch(0)
        assert next(iter(loader)).keys == first
    assert not active_children()


@pytest.mark.parametrize(
    ("size", "weights", "shares"), [(256, [3, 1], [192, 64]), (10, [1, 1, 1], [3, 4, 3]), (8, [0.9, 0.1], [7, 1])]
)
def test_a_batch_is_split_by_weight(size: int, weights: list[float], shares: list[int]) -> None:
    assert split_batch(size, weights) == shares


def test_parts_that_do_not_fit_together_are_refused(captcha_plan: Plan) -> None:
    one = make_loader(captcha_plan())
    others = [make_loader(captcha_plan(resize=Resize(32, 96, 3))), make_loader(captcha_plan(rank=1, world_size=2))]
    for parts, sentence in (
        ([one], "two loaders or more"),
        ([one, others[0]], "different sizes"),
        ([one, others[1]], "the same rank"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            MixedLoader(parts, "cpu")
    with pytest.raises(ConfigError, match="without samples"):
        split_batch(4, [100, 1])
