"""Index arithmetic: parts, rows and mixtures of sources, and what is held out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.sources import Concat, Mix, Source, Subset, holdout
from inkmill.data.sources.base import PackedStrings, fingerprint, repeats
from inkmill.data.types import Sample, Text
from inkmill.errors import ConfigError, DataError


class Words(Source):
    """The smallest thing that is a Source."""

    def __init__(self, keys: list[str], name: str = "words") -> None:
        super().__init__(name)
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def fingerprint(self) -> str:
        return fingerprint(*self.keys)

    def image(self, index: int) -> bytes:
        return self.keys[index].encode()

    def key(self, index: int) -> str:
        return self.keys[index]

    def target(self, index: int) -> Text:
        return Text(self.keys[index])


def words(count: int, name: str = "words") -> Words:
    return Words([f"{name}{number}" for number in range(count)], name)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4), data=st.data())
def test_a_mix_shows_each_sample_as_often_as_its_weight_says(sizes: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.05, 4), min_size=len(sizes), max_size=len(sizes)))
    mix = Mix([words(size, f"s{number}") for number, size in enumerate(sizes)], weights)
    seen = Counter(mix.locate(index) for index in range(len(mix)))
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        counts = [seen[number, inner] for inner in range(size)]
        assert sum(counts) == max(round(size * weight), 1)
        assert max(counts) - min(counts) <= 1


def test_a_fractional_share_is_spread_over_the_whole_source() -> None:
    mix = Mix([words(100), words(10)], [0.1, 1.5])
    assert [mix.locate(index)[1] for index in range(10)] == list(range(0, 100, 10))
    assert [mix.locate(index)[1] for index in range(10, 25)] == [*range(10), 0, 2, 4, 6, 8]


def test_a_mix_of_weight_one_is_its_sources_in_a_row() -> None:
    mix = Mix([words(2, "a"), words(1, "b")])
    assert [mix.key(index) for index in range(3)] == ["0/a/a0", "0/a/a1", "1/b/b0"]
    assert mix.get(-1) == Sample("1/b/b0", b"b0", Text("b0"))
    assert len(Concat([words(2), words(2)])) == 4


@pytest.mark.parametrize("weights", [[0.0], [-1.0], [float("inf")], [1.0, 1.0]])
def test_weights_that_mean_nothing_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="mix"):
        Mix([words(3)], weights)


def test_a_subset_keeps_order_and_keys_and_has_its_own_fingerprint() -> None:
    source = words(5)
    subset = Subset(source, np.array([4, 0, 4]))
    assert isinstance(subset, Source)
    assert [subset.get(index).key for index in range(3)] == ["words4", "words0", "words4"]
    assert len({source.fingerprint, subset.fingerprint, Subset(source, [0, 4]).fingerprint}) == 3


@pytest.mark.parametrize("index", [5, -1])
def test_a_subset_of_samples_that_are_not_there_is_refused(index: int) -> None:
    with pytest.raises(DataError, match="5 samples; there is no sample"):
        Subset(words(5), [0, index])


@given(count=st.integers(2, 60), fraction=st.floats(0.05, 0.6), seed=st.integers(0, 9), data=st.data())
def test_the_same_samples_are_held_out_whatever_their_order(
    count: int, fraction: float, seed: int, data: st.DataObject
) -> None:
    keys = [f"images/{number}.png" for number in range(count)]
    shuffled = data.draw(st.permutations(keys))
    train, val = holdout(Words(keys), fraction, seed)
    _, other = holdout(Words(shuffled), fraction, seed)
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(count))
    assert len(val) == max(round(fraction * count), 1)
    assert {keys[index] for index in val} == {shuffled[index] for index in other}


def test_holdout_depends_on_the_seed_and_keeps_mentions_of_one_image_together() -> None:
    source = words(200)
    assert set(holdout(source, 0.2, 0)[1].tolist()) != set(holdout(source, 0.2, 1)[1].tolist())
    twice = Words([f"{number}.png{repeat}" for number in range(50) for repeat in ("", "#2")])
    train, val = holdout(twice, 0.3)
    assert not {twice.keys[i].removesuffix("#2") for i in train} & {twice.keys[i].removesuffix("#2") for i in val}


@pytest.mark.parametrize("keys", [[], ["a"], ["a", "a#2"]])
def test_too_few_samples_to_hold_some_out_is_one_sentence(keys: list[str]) -> None:
    with pytest.raises(DataError, match="too few to hold some out"):
        holdout(Words(keys), 0.1)


@given(st.lists(st.text()))
def test_packed_strings_are_the_strings(strings: list[str]) -> None:
    assert list(PackedStrings(strings)) == strings
    seen: Counter[str] = Counter()
    expected = {}
    for index, string in enumerate(strings):
        seen[string] += 1
        expected |= {index: seen[string]} if seen[string] > 1 else {}
    assert repeats(PackedStrings(strings)) == expected


@pytest.mark.parametrize("kind", ["source", "subset", "mix"])
def test_many_samples_are_described_as_each_is(kind: str) -> None:
    source = Words(["a", "b", "c", "d", "e"])
    whole: Source = {"source": source, "subset": Subset(source, [4, 1, 3]), "mix": Mix([source, source], [0.4, 1])}[
        kind
    ]
    index = [2, 0, 2, 1]
    keys, targets = whole.described(index)
    assert keys == [whole.key(i) for i in index]
    assert targets == [whole.target(i) for i in index]


@pytest.mark.parametrize("kind", ["source", "subset", "mix"])
def test_many_samples_are_read_as_each_is(kind: str) -> None:
    source = Words(["a", "b", "c", "d", "e"])
    whole: Source = {"source": source, "subset": Subset(source, [4, 1, 3]), "mix": Mix([source, source], [0.4, 1])}[
        kind
    ]
    with whole.reading() as get:
        assert [get(i) for i in (2, 0, 2, 1)] == [whole.get(i) for i in (2, 0, 2, 1)]


@pytest.mark.parametrize("kind", ["subset", "mix"])
def test_a_wrapped_source_reads_a_sample_in_one_call(kind: str) -> None:
    """Asked for key, image and label apart, an LMDB begins three transactions."""

    class Counting(Words):
        asked = 0

        def get(self, index: int) -> Sample:
            self.asked += 1
            return Sample(self.keys[index], self.keys[index].encode(), Text(self.keys[index]))

        def target(self, index: int) -> Text:
            self.asked += 1
            return super().target(index)

    source = Counting(["a", "b", "c", "d", "e"])
    wrapped: Source = Subset(source, [4, 1]) if kind == "subset" else Mix([source], [2.0])
    sample = wrapped.get(1)
    assert source.asked == 1
    assert sample == Sample(wrapped.key(1), b"b", Text("b"))
    with pytest.raises(IndexError):
        wrapped.get(len(wrapped))
