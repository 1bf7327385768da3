from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.config.tasks import PruneSetting
from inkmill.deploy.prune.choose import Scored, choose
from inkmill.errors import ConfigError

MODES = ["amount", "threshold", "experimental_hybrid"]


def group(channels: int, seed: int = 0, filters: int = 1) -> Scored:
    scores = np.random.default_rng(seed).random(channels) + 0.1
    return Scored(scores / scores.max(), filters)


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=6),
    st.floats(0, 1),
    st.integers(1, 40),
    st.sampled_from(MODES),
)
def test_what_stays_is_a_multiple_of_the_granularity_and_the_highest_of_its_group(
    sizes: list[int], amount: float, granularity: int, mode: str
) -> None:
    groups = [group(size, seed) for seed, size in enumerate(sizes)]
    settings = PruneSetting.model_validate(
        {"mode": mode, "amount": amount, "threshold": amount, "granularity": granularity}
    )
    for one, going in zip(groups, choose(groups, settings), strict=True):
        size = len(one.scores)
        kept = size - len(going)
        assert kept == size or (kept % granularity == 0 and kept >= granularity)
        staying = np.setdiff1d(np.arange(size), going)
        assert not len(going) or one.scores[going].max() <= one.scores[staying].min()


@pytest.mark.parametrize(("amount", "kept"), [(0.0, 512), (0.4, 304), (0.5, 256), (1.0, 8)])
def test_amount_is_the_share_that_every_group_loses(amount: float, kept: int) -> None:
    (going,) = choose([group(512, filters=11)], PruneSetting(amount=amount))
    assert 512 - len(going) == kept


def test_threshold_keeps_what_scores_above_it_filled_up_to_a_multiple() -> None:
    scores = np.linspace(0.01, 1, 100)
    (going,) = choose([Scored(scores)], PruneSetting(mode="threshold", threshold=0.7, granularity=8))
    assert going.tolist() == list(range(100 - 32))  # 30 are above 0.7


def test_hybrid_cuts_the_asked_share_of_all_filters_wherever_they_matter_least() -> None:
    flat, steep = Scored(np.linspace(0.9, 1, 400)), Scored(np.linspace(0.001, 1, 40) ** 4)
    settings = PruneSetting(mode="experimental_hybrid", amount=0.3, granularity=1)
    going = choose([flat, steep], settings)
    assert sum(map(len, going)) == pytest.approx(0.3 * 440, abs=2)
    assert len(going[1]) > 0.3 * 40  # what is near nothing goes first, whatever the layer's own scale


def test_a_coupled_channel_counts_as_all_its_filters() -> None:
    settings = PruneSetting(mode="experimental_hybrid", amount=0.5, granularity=1)
    plain, trunk = group(100, 1), group(100, 1, filters=9)
    once = choose([plain, group(100, 1)], settings)
    coupled = choose([plain, trunk], settings)
    removed = len(coupled[0]) + 9 * len(coupled[1])
    assert removed == pytest.approx(0.5 * 1000, abs=10)
    assert sum(map(len, once)) == pytest.approx(100, abs=2)


@pytest.mark.parametrize(("mode", "key"), [("amount", "amount"), ("threshold", "threshold")])
def test_a_mode_without_its_number_says_which_key_to_give(mode: str, key: str) -> None:
    settings = PruneSetting.model_validate({"mode": mode, "amount": None})
    with pytest.raises(
        ConfigError, match=rf"needs prune\.prune_setting\.{key}: give prune\.prune_setting\.{key}=0\.\d"
    ):
        choose([group(16)], settings)
