"""The permutation, the rank slices and the buckets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.pipeline.order import BatchOrder, Order

lengths = st.one_of(st.integers(1, 40), st.integers(41, 3000))


@given(lengths, st.integers(-(2**40), 2**64), st.integers(0, 10**6))
def test_each_epoch_holds_every_index_once(length: int, seed: int, epoch: int) -> None:
    indices = Order(length, seed).indices(epoch, 0, length)
    assert indices.dtype == np.int64
    assert np.array_equal(np.sort(indices), np.arange(length))


@given(lengths, st.data())
def test_any_range_of_positions_is_a_part_of_the_whole(length: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    order = Order(length, 7)
    assert np.array_equal(order.indices(3, start, stop), order.indices(3, 0, length)[start:stop])


def test_parts_agree_across_the_chunks_of_a_long_range() -> None:
    order = Order(100_003, 1)
    whole = order.indices(0, 0, 100_003)
    assert np.array_equal(np.sort(whole), np.arange(100_003))
    assert np.array_equal(order.indices(0, 16_000, 50_000), whole[16_000:50_000])


def test_a_position_among_billions_costs_no_table() -> None:
    found = Order(2**40 + 5, 1).indices(0, 2**39, 2**39 + 4)
    assert len(set(found.tolist())) == 4
    assert found.max() <= 2**40 + 4


def test_seed_and_epoch_change_the_order_and_nothing_else_does() -> None:
    whole = [Order(1000, seed).indices(epoch, 0, 1000) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert np.array_equal(whole[0], whole[3])
    for other in whole[1:3]:
        assert (whole[0] == other).mean() < 0.02


def test_the_shuffle_is_as_good_as_a_random_permutation() -> None:
    """Neighbours end up far apart, and every index visits every position about equally often."""
    length = 10_000
    indices = Order(length, 5).indices(0, 0, length)
    assert abs(np.abs(indices - np.arange(length)).mean() / (length / 3) - 1) < 0.03
    assert abs(np.corrcoef(indices[:-1], indices[1:])[0, 1]) < 0.03
    visits = np.zeros((12, 12))
    for epoch in range(6000):
        visits[np.arange(12), Order(12, 5).indices(epoch, 0, 12)] += 1
    chi_square = ((visits - 500) ** 2 / 500).sum()
    assert chi_square < 121 + 5 * np.sqrt(2 * 121)  # 121 degrees of freedom, five standard deviations


def test_without_shuffling_the_order_is_the_sources() -> None:
    assert np.array_equal(Order(9, 5, shuffle=False).indices(4, 2, 6), [2, 3, 4, 5])


def test_positions_outside_are_refused() -> None:
    with pytest.raises(IndexError, match="data set of 5 samples"):
        Order(5, 0).indices(0, 2, 6)


@given(st.integers(1, 400), st.integers(1, 16), st.sampled_from([1, 2, 3, 4, 8]), st.booleans())
def test_ranks_share_an_epoch_without_overlap(length: int, batch_size: int, world: int, buckets: bool) -> None:
    widths = np.array([32, 64, 96])[np.arange(length) % 3] if buckets else None
    ranks = [BatchOrder(Order(length, 3), batch_size, rank, world, widths) for rank in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    seen = []
    for number in range(len(ranks[0])):
        parts = [rank.samples(1, number) for rank in ranks]
        sizes = [len(part) for part in parts]
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        seen.extend(parts)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(length))


@pytest.mark.parametrize("buckets", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_batches_one_after_the_other_are_those_asked_for_by_number(world: int, buckets: bool) -> None:
    widths = np.arange(40_001) % 3 if buckets else None
    batches = BatchOrder(Order(40_001, 5), 1000, 0, world, widths)
    for first in (0, 7, len(batches)):
        expected = [batches.samples(2, number).tolist() for number in range(first, len(batches))]
        assert [rows.tolist() for rows in batches.batches(2, first)] == expected


@pytest.mark.parametrize("buckets", [False, True])
def test_the_same_global_batch_holds_the_same_rows_for_any_number_of_ranks(buckets: bool) -> None:
    widths = np.array([32, 64])[np.arange(203) % 2] if buckets else None
    alone = BatchOrder(Order(203, 3), 16, bucket_widths=widths)
    for world in (2, 4):
        ranks = [BatchOrder(Order(203, 3), 16 // world, rank, world, widths) for rank in range(world)]
        for number in range(len(alone)):
            together = np.concatenate([rank.samples(2, number) for rank in ranks])
            assert np.array_equal(together, alone.samples(2, number))


def test_a_batch_of_buckets_holds_one_width_and_the_batches_are_mixed() -> None:
    widths = np.repeat([32, 64, 128], [50, 70, 30])
    batches = BatchOrder(Order(150, 3), 8, bucket_widths=widths)
    found = [widths[batches.samples(0, number)] for number in range(len(batches))]
    assert all(len(set(batch.tolist())) == 1 for batch in found)
    sequence = [int(batch[0]) for batch in found]
    assert sequence != sorted(sequence)
    assert len(batches) == 7 + 9 + 4


def test_the_last_batch_is_short_and_there_is_none_after_it() -> None:
    batches = BatchOrder(Order(10, 0), 4)
    assert [len(batches.samples(0, number)) for number in range(3)] == [4, 4, 2]
    with pytest.raises(IndexError, match="epoch of 3 batches"):
        batches.samples(0, 3)
