"""The warp of parts of larger pictures, against plain arithmetic, and torch's against OpenCV's."""

from __future__ import annotations

import numpy as np
import pytest

from inkmill.data.augment.page_warp import places_a_side, to_input, warp_page


def matrix(scale, x=0.0, y=0.0):
    return np.array([[scale, 0, x], [0, scale, y], [0, 0, 1]], np.float32)


def warped(page, matrix, height, width, places=None):
    out = np.empty((height, width, page.shape[2]), np.uint8)
    warp_page(page, matrix, int(places_a_side(matrix[None], height, width)[0]) if places is None else places, out)
    return out


@pytest.fixture
def page():
    return np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)


def test_a_part_at_its_own_size_is_copied(page):
    assert np.array_equal(warped(page, matrix(1, 20, 10), 30, 40), page[10:40, 20:60])


def test_what_lies_outside_is_black(page):
    out = warped(page, matrix(1, -5, -7), 20, 20)
    assert not out[:7].any()
    assert not out[:, :5].any()
    assert np.array_equal(out[7:, 5:], page[:13, :15])


@pytest.mark.parametrize(("scale", "places"), [(0.5, 1), (1, 1), (2, 1), (2.1, 2), (4, 2), (6.5, 4), (40, 4)])
def test_a_pixel_is_the_mean_of_more_places_the_more_it_shows(scale, places):
    assert places_a_side(matrix(scale)[None], 64, 64).tolist() == [places]


def test_every_pixel_of_the_picture_counts_when_it_shrinks(page):
    out = warped(page, matrix(4, 1.5, 1.5), 15, 22)
    means = page[:, :88].reshape(15, 4, 22, 4, 3).mean(axis=(1, 3))
    assert np.abs(out - means).max() <= 2


def test_regions_follow_the_same_matrix(page):
    space = np.array([[[0.7, 0.2, 5], [-0.1, 0.8, 3], [0.001, 0, 1]]], np.float32)
    resized = matrix(0.5)[None].astype(np.float64)
    x, y, w = to_input(space, resized)[0] @ np.array([40, 24, 1])
    back = space[0] @ np.array([x / w, y / w, 1])
    assert back[:2] / back[2] == pytest.approx([20, 12], abs=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_torch_and_opencv_agree(channels):
    torch = pytest.importorskip("torch")
    from inkmill.data.augment.page_passes import Pages, warp_pages

    rng = np.random.default_rng(1)
    pages = [rng.integers(0, 256, shape, np.uint8) for shape in ((50, 70, channels), (80, 31, channels))]
    headers = torch.tensor([[0, 50, 70, 70], [pages[0].size, 80, 31, 31]])
    memory = torch.from_numpy(np.concatenate([one.ravel() for one in pages]))
    turned = np.array([[0.9, 0.3, -4], [-0.2, 1.1, 6], [0.002, 0.001, 1]], np.float32)
    matrices, index = np.stack([turned, matrix(3.3, 0, -9), matrix(0.4, 3, 5)]), [0, 1, 0]
    places = places_a_side(matrices, 20, 24)
    values = torch.from_numpy(matrices.reshape(3, 9))
    given = Pages(memory, headers, channels)
    found = warp_pages(given, torch.tensor(index), values, torch.from_numpy(places).int(), 0, (20, 24)).numpy()
    for row, number in enumerate(index):
        ours = warped(pages[number], matrices[row], 20, 24, int(places[row]))
        assert np.abs(ours - found[row]).mean() < 1  # OpenCV rounds places to a 32nd of a pixel, of noise
