from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.nn.rectifiers.tps import TPS, base_points, spline_matrix

SIZES = st.tuples(st.integers(2, 12).map(lambda n: 2 * n), st.integers(8, 40), st.integers(8, 80))


@settings(max_examples=25)
@given(size=SIZES, seed=st.integers(0, 1000))
def test_points_on_their_base_give_the_image_back(size: tuple[int, int, int], seed: int) -> None:
    points, height, width = size
    tps = TPS(points, height, width, channels=1).eval()
    tps.points.bias.data = torch.from_numpy(base_points(points).astype(np.float32).ravel())
    images = torch.rand(2, 1, height, width, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        assert torch.allclose(tps(images), images, atol=1e-3)


@settings(max_examples=25)
@given(size=SIZES, matrix=st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_an_affine_move_of_the_points_moves_every_pixel_alike(size: tuple[int, int, int], matrix: list[float]) -> None:
    points, height, width = size
    move, shift = np.array(matrix[:4]).reshape(2, 2), np.array(matrix[4:])
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    pixels = np.stack([x.ravel(), y.ravel()], axis=1)
    grid = spline_matrix(points, height, width) @ (base_points(points) @ move + shift)
    assert np.allclose(grid, pixels @ move + shift, atol=1e-3)


def test_it_starts_from_the_sloping_edges_of_rare() -> None:
    tps = TPS(8, 32, 100, channels=1).eval()
    points = tps.control_points(torch.rand(3, 1, 32, 100))[1]
    assert points[:4, 1].tolist() == pytest.approx([0, -1 / 3, -2 / 3, -1])
    assert points[4:, 1].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert points[:4, 0].tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1])


def test_sampling_keeps_its_precision_under_autocast() -> None:
    tps = TPS(20, 64, 200, channels=1).eval()
    images = torch.rand(1, 1, 64, 200)
    with torch.no_grad():
        exact = tps(images)
        with torch.autocast("cpu", torch.bfloat16):
            close = tps(images)
    assert torch.allclose(exact, close, atol=1e-2)


def test_the_spline_follows_from_the_sizes_and_is_not_saved() -> None:
    assert not any("matrix" in name for name in TPS(20, 32, 100, channels=1).state_dict())


def test_no_image_gives_no_image() -> None:
    tps = TPS(4, 16, 32, channels=1)
    assert tps(torch.empty(0, 1, 16, 32)).shape == (0, 1, 16, 32)
