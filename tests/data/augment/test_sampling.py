from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import Augmentation
from inkmill.data.augment.ops import load_preset, parse_ops, preset_names
from inkmill.data.augment.params import gray_gain
from inkmill.data.augment.random_numbers import (
    NOISE_UNIT,
    noise_ring,
    sample_states,
    stream_ids,
    stream_offsets,
    uniforms,
)


def sample(*entries: dict, count: int = 4000, height: int = 32, width: int = 128, seed: int = 0, epoch: int = 0):
    return Augmentation(parse_ops(entries)).sample(seed, epoch, np.arange(count), height, width)


def show(matrix: np.ndarray, point: tuple[float, float]) -> np.ndarray:
    """Where a point of the input is seen in the output."""
    x = np.linalg.inv(matrix) @ np.array([*point, 1.0])
    return x[:2] / x[2]


@settings(max_examples=30)
@given(st.integers(0, 2**63), st.integers(0, 1000), st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_a_row_depends_on_its_index_and_never_on_its_batch(seed: int, epoch: int, index: list[int]) -> None:
    augmentation = Augmentation(load_preset("scene_text"))
    together = augmentation.sample(seed, epoch, np.array(index), 32, 128).values
    alone = np.concatenate([augmentation.sample(seed, epoch, np.array([i]), 32, 128).values for i in index])
    assert np.array_equal(together, alone)


def test_seed_epoch_and_index_each_give_other_changes() -> None:
    base = sample({"op": "rotate"}, count=50).values
    assert not (base == sample({"op": "rotate"}, count=50, seed=1).values).all(axis=1).any()
    assert not (base == sample({"op": "rotate"}, count=50, epoch=1).values).all(axis=1).any()
    assert len(np.unique(base, axis=0)) == 50


def test_random_numbers_stay_the_same_from_version_to_version() -> None:
    first = uniforms(sample_states(7, 3, np.arange(3)), stream_offsets(stream_ids(2, 2)))
    assert np.round(first, 6).tolist() == [[0.151041, 0.761785, 0.229589], [0.432089, 0.963074, 0.919071]]
    assert noise_ring()[:8].tolist() == [-14, 5, 29, -17, 22, -7, -32, -56]


OPS_IN_ORDER = [
    "rotate",
    "shear",
    "scale",
    "shift",
    "perspective",
    "flip",
    "curve",
    "elastic",
    "brightness",
    "contrast",
    "saturation",
    "hue",
    "invert",
    "blur",
    "noise",
    "jpeg",
    "cutout",
]
GOLDEN = {
    "space": "-0.90688 0.30252 115.8 0.045095 0.99075 -2.2473 0.00055453 0.0032207 0.91487",
    "waves": (
        "0 4.2411 0.035589 0 4.7652 -0.26664 -0.10755 -0.099193 -0.07654 0.4323 0.28734 0.0099605 "
        "-0.13807 0.073846 0.86987 -0.065316 0.27999 0.01868 -0.077607 4.5937"
    ),
    "blur": "0.67389",
    "colour": ("-1.1334 -0.089295 0.078475 256.44 0.039218 -1.127 -0.056402 256.44 -0.23032 0.14572 -1.0596 256.44"),
    "noise": "1.3816 947140",
    "jpeg": "67",
    "cutouts": "106 2 111 8 109.34",
}


def test_a_sample_gets_the_same_params_from_version_to_version() -> None:
    augmentation = Augmentation(parse_ops([{"op": name, "p": 1} for name in OPS_IN_ORDER]))
    params = augmentation.sample(7, 3, np.array([42]), 32, 128)
    assert list(params.layout.columns) == list(GOLDEN)
    for part, numbers in GOLDEN.items():
        assert params.part(part)[0] == pytest.approx([float(number) for number in numbers.split()], rel=1e-4)


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    u = uniforms(sample_states(0, 0, np.arange(20_000)), stream_offsets(stream_ids(0, 6)))
    assert 0 <= u.min() < u.max() < 1
    assert np.abs(u.mean(axis=1) - 0.5).max() < 0.01
    assert np.abs(u.var(axis=1) - 1 / 12).max() < 0.003
    assert np.abs(np.corrcoef(u) - np.eye(6)).max() < 0.03
    assert abs(np.corrcoef(u[0, 1:], u[0, :-1])[0, 1]) < 0.03


def test_the_ring_of_noise_is_standard_normal() -> None:
    ring = noise_ring() / NOISE_UNIT
    assert abs(ring.mean()) < 0.005
    assert abs(ring.std() - 1) < 0.005
    assert abs((np.abs(ring) < 1).mean() - 0.6827) < 0.02  # a step of 1/32 moves it by up to 0.015


def test_probabilities_are_kept_and_untouched_rows_are_exactly_nothing() -> None:
    space = sample({"op": "rotate", "p": 0.3}, {"op": "shift", "p": 0}).space
    still = (space == np.eye(3, dtype=np.float32)).all(axis=(1, 2))
    assert abs(still.mean() - 0.7) < 0.03


def test_a_group_happens_together_or_not_at_all() -> None:
    params = sample({"op": "group", "p": 0.4, "ops": [{"op": "rotate"}, {"op": "noise", "std": [1, 5]}]})
    moved = (params.space != np.eye(3, dtype=np.float32)).any(axis=(1, 2))
    noisy = params.part("noise")[:, 0] > 0
    assert np.array_equal(moved, noisy)
    assert abs(moved.mean() - 0.4) < 0.03


def test_taos_keys_invert_rotate_both_ways_and_blur_by_the_listed_radii() -> None:
    spec = AugmentationSpec(aug_prob=1, max_rotation_degree=5, gaussian_radius_list=[1, 3])
    params = Augmentation.from_spec(spec).sample(0, 0, np.arange(4000), 32, 100)
    angles = np.degrees(np.arcsin(params.space[:, 1, 0]))
    assert -5 <= angles.min() < -4.5
    assert 4.5 < angles.max() <= 5
    assert np.unique(params.part("blur")).tolist() == [0, 1, 3]
    inverted = params.colour[:, 0, 0] < 0
    assert abs(inverted.mean() - 0.5) < 0.03


def test_a_positive_rotation_turns_counter_clockwise_about_the_centre() -> None:
    matrix = sample({"op": "rotate", "degrees": [90, 90]}, count=1, height=41, width=101).space[0]
    assert show(matrix, (50, 20)) == pytest.approx((50, 20), abs=1e-3)
    assert show(matrix, (60, 20)) == pytest.approx((50, 10), abs=1e-3)  # what was right of it is now above


def test_shift_scale_and_flip_move_points_as_they_say() -> None:
    shift = sample({"op": "shift", "x": [0.1, 0.1], "y": [-0.5, -0.5]}, count=1, height=20, width=100).space[0]
    assert show(shift, (30, 15)) == pytest.approx((40, 5), abs=1e-3)
    scale = sample({"op": "scale", "factor": 2}, count=1, height=21, width=101).space[0]
    assert show(scale, (60, 15)) == pytest.approx((70, 20), abs=1e-3)
    flip = sample({"op": "flip"}, count=1, height=21, width=101).space[0]
    assert show(flip, (0, 3)) == pytest.approx((100, 3), abs=1e-3)


def test_changes_in_space_happen_in_the_specs_order() -> None:
    turn, slide = {"op": "rotate", "degrees": [90, 90]}, {"op": "shift", "x": [0.1, 0.1], "y": 0}
    first_turn = sample(turn, slide, count=1, height=101, width=101).space[0]
    first_slide = sample(slide, turn, count=1, height=101, width=101).space[0]
    assert show(first_turn, (50, 50)) == pytest.approx((60.1, 50), abs=1e-3)
    assert show(first_slide, (50, 50)) == pytest.approx((50, 39.9), abs=1e-3)


def test_colour_changes_compose_to_one_matrix_in_order() -> None:
    def after(*entries: dict) -> np.ndarray:
        return sample(*entries, count=1).colour[0] @ np.array([200, 100, 50, 1.0])

    assert after({"op": "invert", "p": 1}) == pytest.approx([55, 155, 205], abs=1e-3)
    assert after({"op": "brightness", "factor": 0.5}) == pytest.approx([100, 50, 25], abs=1e-3)
    assert after({"op": "contrast", "factor": 0}) == pytest.approx([127.5] * 3, abs=1e-3)
    assert after({"op": "gray", "p": 1}) == pytest.approx([124.2] * 3, abs=1e-3)
    assert after({"op": "saturation", "factor": 1}) == pytest.approx([200, 100, 50], abs=1e-3)
    half_then_invert = after({"op": "brightness", "factor": 0.5}, {"op": "invert", "p": 1})
    assert half_then_invert == pytest.approx([155, 205, 230], abs=1e-3)
    turned = after({"op": "hue", "degrees": [120, 120]})
    luma = np.array([0.299, 0.587, 0.114])
    assert turned @ luma == pytest.approx(124.2, abs=0.1)
    assert after(*[{"op": "hue", "degrees": [120, 120]}] * 3) == pytest.approx([200, 100, 50], abs=1e-2)


def test_gray_images_keep_brightness_contrast_and_inversion_but_have_no_hue() -> None:
    keeps = gray_gain(sample({"op": "brightness", "factor": 0.5}, {"op": "invert", "p": 1}, count=1).colour)
    assert keeps[0] == pytest.approx([-0.5, 255], abs=1e-3)
    hueless = gray_gain(sample({"op": "hue", "degrees": 90}, {"op": "saturation", "factor": [0, 2]}, count=20).colour)
    assert hueless == pytest.approx(np.tile([1, 0], (20, 1)), abs=1e-3)


def test_two_blurs_are_one_with_both_variances() -> None:
    params = sample({"op": "blur", "sigma": 3}, {"op": "blur", "sigma": 4}, count=2)
    assert params.part("blur")[:, 0].tolist() == [5, 5]
    assert params.layout.blur_radius == 15


def test_cutouts_lie_in_the_picture() -> None:
    cutouts = sample({"op": "cutout", "count": 3, "size": [0, 1]}, height=20, width=50).cutouts.reshape(-1, 5)
    left, top, right, bottom, shade = cutouts.T
    assert 0 <= left.min() <= right.max() <= 50
    assert 0 <= top.min() <= bottom.max() <= 20
    assert (left <= right).all()
    assert (top <= bottom).all()
    assert np.array_equal(cutouts[:, :4], np.rint(cutouts[:, :4]))
    assert 0 <= shade.min() < shade.max() <= 255


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_shows_the_horizon_or_folds_the_picture(name: str) -> None:
    params = Augmentation(load_preset(name)).sample(0, 0, np.arange(3000), 32, 128)
    assert np.isfinite(params.values).all()
    if params.space is None:  # synthetic text is put in its place as it is drawn
        assert name == "synthetic_text"
        return
    corners = np.array([[0, 0, 1], [127, 0, 1], [0, 31, 1], [127, 31, 1]]).T
    assert ((params.space @ corners)[:, 2] > 0.1).all()
    assert (np.linalg.det(params.space) > 0).all()


def test_perspectives_that_compose_beyond_the_horizon_are_held_before_it() -> None:
    wild = {"op": "perspective", "x": [-0.5, 0.5], "y": [-0.5, 0.5]}
    params = sample(*[wild] * 6, {"op": "scale", "factor": [0.1, 0.2]}, {"op": "shift", "x": 1, "y": 1}, count=500)
    corners = np.array([[0, 0, 1], [127, 0, 1], [0, 31, 1], [127, 31, 1]]).T
    assert ((params.space @ corners)[:, 2] > 0.1).all()


def test_a_spec_without_an_op_has_no_columns_for_it() -> None:
    params = sample({"op": "invert"}, count=3)
    assert params.layout.size == 12
    assert params.space is None
    assert params.waves is None
    assert not Augmentation([])
    assert Augmentation([]).sample(0, 0, np.arange(3), 32, 100).values.shape == (3, 0)
