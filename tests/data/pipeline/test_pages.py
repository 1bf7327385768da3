"""How whole pictures meet a detector's input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.pipeline.pages import STEP, PageResize, bucket_size, page_sizes
from inkmill.data.pipeline.resize import Resize

PAGES = PageResize(736, 1536, 3)
sides = st.integers(1, 8000)


@pytest.mark.parametrize(
    ("size", "page", "padded"),
    [
        ((1280, 720), (1308, 736), (1312, 736)),
        ((720, 1280), (736, 1308), (736, 1312)),
        ((2480, 3508), (736, 1041), (736, 1056)),
        ((4000, 400), (1536, 154), (1536, 160)),
        ((100, 100), (200, 200), (224, 224)),
    ],
)
def test_the_short_side_is_what_counts_up_to_a_long_side(size, page, padded):
    assert PAGES.page_size(*size) == page
    assert PAGES.padded_size(*size) == padded


@given(sides, sides)
def test_inputs_are_within_their_limits_and_divisible(width, height):
    columns, rows = PAGES.page_size(width, height)
    padded = PAGES.padded_size(width, height)
    assert max(columns, rows) <= PAGES.width
    assert min(columns, rows) <= PAGES.height
    assert all(side % STEP == 0 for side in padded)
    assert padded[0] - columns in range(STEP)
    assert bucket_size(PAGES.bucket(width, height)) == padded[::-1]
    assert padded[0] * padded[1] <= PAGES.most_pixels


@given(sides, sides)
def test_the_matrix_maps_corner_to_corner(width, height):
    columns, rows = PAGES.page_size(width, height)
    found = PAGES.matrix(width, height) @ np.array([[-0.5, -0.5, 1], [width - 0.5, height - 0.5, 1]]).T
    assert pytest.approx(np.array([[-0.5, -0.5], [columns - 0.5, rows - 0.5]]), abs=1e-6) == found[:2].T


def test_other_limits_are_another_cache():
    digests = {PAGES.digest(), PageResize(704, 1536, 3).digest(), PageResize(736, 1536, 1).digest()}
    assert len(digests | {Resize(736, 1536, 3).digest()}) == 4


def test_sizes_of_many_pictures_are_those_of_each():
    assert page_sizes(np.array([[1280, 720], [100, 100]]), PAGES).tolist() == [[736, 1308], [200, 200]]


@pytest.mark.parametrize("sides", [(16, 32), (800, 736)])
def test_sides_that_cannot_be_are_refused(sides):
    with pytest.raises(ValueError, match="short side"):
        PageResize(*sides, 3)
