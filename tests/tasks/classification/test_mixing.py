"""Mixup and CutMix: shares of pixels are shares of labels, and the numbers hang on the sample alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inkmill.tasks.classification.mixing import mix, sample_mixing

INDEX = np.arange(4000)


def test_numbers_hang_on_seed_epoch_and_index_alone() -> None:
    whole = sample_mixing(0.4, 1.0, 3, 7, INDEX)
    np.testing.assert_array_equal(sample_mixing(0.4, 1.0, 3, 7, INDEX[100:50:-1]), whole[100:50:-1])
    assert not np.array_equal(sample_mixing(0.4, 1.0, 3, 8, INDEX), whole)


def test_each_image_gets_one_of_both_and_shares_follow_beta() -> None:
    numbers = sample_mixing(0.4, 1.0, 0, 0, INDEX)
    blended, pasted = numbers[:, 0] > 0, numbers[:, 3] > numbers[:, 1]
    assert not (blended & pasted).any()
    assert blended.mean() == pytest.approx(0.5, abs=0.03)
    shares = sample_mixing(0.4, 0, 0, 0, INDEX)[:, 0]
    assert shares.mean() == pytest.approx(0.5, abs=0.02)
    assert shares.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), rel=0.05)  # of Beta(0.4, 0.4)


def test_pixels_of_a_rectangle_and_labels_come_in_the_same_share() -> None:
    images = torch.tensor([0, 200], dtype=torch.uint8)[:, None, None, None].expand(2, 8, 10, 3).contiguous()
    labels = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    numbers = torch.tensor([[0, 0.5, 0.5, 1, 1], [0.25, 0, 0, 0, 0]])
    mixed, shares = mix(images, labels, numbers)
    assert mixed[0, :4].max() == 0
    assert (mixed[0, 4:, 5:] == 200).all()
    assert (mixed[1] == 150).all()
    assert shares.tolist() == [[0.75, 0.25, -1.0], [0.25, 0.75, -1.0]]


def test_what_takes_nothing_stays_as_it_is() -> None:
    images = torch.randint(0, 256, (3, 5, 6, 3), dtype=torch.uint8)
    labels = torch.tensor([[1.0], [-1.0], [0.0]])
    mixed, shares = mix(images, labels, torch.zeros(3, 5))
    assert torch.equal(mixed, images)
    assert torch.equal(shares, labels)
