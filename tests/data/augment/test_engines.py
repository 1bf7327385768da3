"""The engines on real captchas: what a params asks for is what one sees, and engines agree."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from inkmill.data.augment import Augmentation, AugmentParams, apply_cv
from inkmill.data.augment.ops import OPS, load_preset, parse_ops, preset_names

# Largest mean and largest single difference between OpenCV and torch, in shades of 255. OpenCV rounds to whole shades
# after each change, torch once at the end. In JPEG a coefficient that lies between two steps may fall to either side.
# Shrinking rounds twice, and OpenCV's filters have weights of eleven bits.
ROUNDING, SHRINKING, JPEG = (0.06, 2), (0.25, 2), (0.5, 40)
ONE_BY_ONE = {name: {"jpeg": JPEG, "shrink": SHRINKING}.get(name, ROUNDING) for name in OPS.names() if name != "group"}
PRESETS = {
    "tao": (0.1, 2),
    "captcha": (0.1, 3),
    "lib_ocr": (0.3, 3),
    "scene_text": (0.4, 60),
    "synthetic_text": (0.5, 60),
}


def sampled(images: np.ndarray, *entries: dict, seed: int = 0) -> AugmentParams:
    count, height, width, _ = images.shape
    return Augmentation(parse_ops(entries)).sample(seed, 0, np.arange(count), height, width)


def apply_torch(images: np.ndarray, params: AugmentParams) -> np.ndarray:
    torch = pytest.importorskip("torch")
    from inkmill.data.augment.torch_passes import apply_torch

    return apply_torch(torch.from_numpy(images), params).numpy()


def assert_close(one: np.ndarray, other: np.ndarray, tolerance: tuple[float, int]) -> None:
    difference = np.abs(one.astype(int) - other)
    assert difference.mean() <= tolerance[0]
    assert difference.max() <= tolerance[1]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_opencv_and_torch_agree_on_each_op(crops: dict[int, np.ndarray], name: str, channels: int) -> None:
    params = sampled(crops[channels], {"op": name, "p": 1})
    ours = apply_cv(crops[channels], params)
    assert_close(ours, apply_torch(crops[channels], params), ONE_BY_ONE[name])
    colour_only = name in ("gray", "hue", "saturation")
    assert np.array_equal(ours, crops[channels]) == (colour_only and channels == 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", preset_names())
def test_opencv_and_torch_agree_on_each_preset(crops: dict[int, np.ndarray], name: str, channels: int) -> None:
    images = crops[channels]
    params = Augmentation(load_preset(name)).sample(1, 2, np.arange(len(images)), 32, 128)
    assert_close(apply_cv(images, params), apply_torch(images, params), PRESETS[name])


def test_a_row_looks_the_same_in_any_batch(crops: dict[int, np.ndarray]) -> None:
    images = crops[3]
    params = Augmentation(load_preset("scene_text")).sample(0, 0, np.arange(len(images)), 32, 128)
    together, by_torch = apply_cv(images, params), apply_torch(images, params)
    for row in range(0, 64, 7):
        alone = slice(row, row + 1)
        assert np.array_equal(apply_cv(images[alone], params.rows(alone)), together[alone])
        assert_close(apply_torch(images[alone], params.rows(alone)), by_torch[alone], (0.01, 1))


def test_the_input_is_left_as_it_was(crops: dict[int, np.ndarray]) -> None:
    before = crops[3].copy()
    params = Augmentation(load_preset("scene_text")).sample(0, 0, np.arange(64), 32, 128)
    apply_cv(crops[3], params)
    apply_torch(crops[3], params)
    assert np.array_equal(crops[3], before)


def test_a_flip_mirrors_and_a_shift_repeats_the_border(crops: dict[int, np.ndarray]) -> None:
    images = crops[3]
    assert np.array_equal(apply_cv(images, sampled(images, {"op": "flip"})), images[:, :, ::-1])
    shifted = apply_cv(images, sampled(images, {"op": "shift", "x": [0.25, 0.25], "y": 0}))
    assert np.array_equal(shifted[:, :, 32:], images[:, :, :-32])
    assert np.array_equal(shifted[:, :, :32], np.repeat(images[:, :, :1], 32, axis=2))


def test_a_blur_is_the_gaussian_it_says(crops: dict[int, np.ndarray]) -> None:
    point = np.zeros((1, 33, 33, 1), np.uint8)
    point[0, 16, 16] = 255
    blurred = apply_torch(point, sampled(point, {"op": "blur", "sigma": 1.5}))[0, :, :, 0]
    y, x = np.mgrid[-16:17, -16:17]
    gaussian = 255 * np.exp(-(x**2 + y**2) / (2 * 1.5**2)) / (2 * np.pi * 1.5**2)
    assert np.abs(blurred - gaussian).max() <= 1


def test_shrinking_leaves_no_more_detail_than_the_size_in_between_has() -> None:
    stripes = np.zeros((16, 32, 128, 1), np.uint8)
    stripes[:, :, ::2] = 255
    params = sampled(stripes, {"op": "shrink", "factor": 0.25})
    averaged = apply_cv(stripes, params)[params.part("shrink")[:, 1] == 3]  # by area
    assert len(averaged)
    assert np.abs(averaged.astype(int) - 127).max() <= 2
    assert np.array_equal(apply_cv(stripes, sampled(stripes, {"op": "shrink", "factor": 1})), stripes)


def test_heights_in_between_are_as_many_in_each_octave_and_none_is_larger_than_the_image() -> None:
    images = np.zeros((2048, 32, 64, 1), np.uint8)
    params = sampled(images, {"op": "shrink", "height": [8, 128]})
    heights = 32 * params.part("shrink")[:, 0]
    assert heights.max() < 32
    lost = heights[heights > 0]
    assert len(lost) / len(heights) == pytest.approx(0.5, abs=0.05)  # two octaves of four are below the image's height
    assert (lost < 16).mean() == pytest.approx(0.5, abs=0.05)
    assert lost.min() >= 8 - 1e-4


@pytest.mark.parametrize("length", [1.5, 6.0])
def test_a_motion_blur_is_a_line_of_its_length_and_keeps_brightness(length: float) -> None:
    point = np.zeros((32, 33, 33, 1), np.uint8)
    point[:, 16, 16] = 255
    moved = apply_cv(point, sampled(point, {"op": "motion_blur", "length": length})).astype(float)[..., 0]
    assert moved.sum(axis=(1, 2)) == pytest.approx(255, rel=0.05)
    y, x = np.mgrid[-16:17, -16:17]
    spread = np.sqrt((moved * (x**2 + y**2)).sum(axis=(1, 2)) / moved.sum(axis=(1, 2)))
    # A uniform line has a deviation of length / sqrt(12); the pixels themselves add some.
    assert np.abs(spread - length / np.sqrt(12)).max() < 0.55
    along = (moved * x * y).sum(axis=(1, 2))
    assert along.min() < 0 < along.max()  # in every direction


def test_illumination_is_a_ramp_that_leaves_the_middle() -> None:
    gray = np.full((16, 33, 65, 3), 100, np.uint8)
    lit = apply_cv(gray, sampled(gray, {"op": "illumination", "strength": 0.5}))[..., 0].astype(float)
    assert (lit[:, 16, 32] == 100).all()
    corners = lit[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.max(axis=1).min() == pytest.approx(150, abs=3)
    assert corners.max() <= 151
    assert (corners.max(axis=1) + corners.min(axis=1)) == pytest.approx(200, abs=2)


def test_noise_has_its_standard_deviation_and_differs_between_images() -> None:
    gray = np.full((8, 32, 128, 3), 128, np.uint8)
    noise = apply_cv(gray, sampled(gray, {"op": "noise", "std": 10})).astype(float) - 128
    assert noise.std() == pytest.approx(10, rel=0.02)
    assert abs(noise.mean()) < 0.3
    assert np.abs(np.corrcoef(noise.reshape(8, -1)) - np.eye(8)).max() < 0.05


def test_noise_runs_on_over_the_end_of_the_ring() -> None:
    gray = np.full((1, 640, 640, 3), 128, np.uint8)  # more numbers than the ring has
    params = sampled(gray, {"op": "noise", "std": 10})
    assert np.array_equal(apply_cv(gray, params), apply_torch(gray, params))


@pytest.mark.parametrize("quality", [10, 50, 90])
def test_jpeg_marks_in_torch_cost_what_a_real_jpeg_costs(crops: dict[int, np.ndarray], quality: int) -> None:
    images = crops[3]
    params = sampled(images, {"op": "jpeg", "quality": quality})
    lost = [np.abs(apply(images, params).astype(float) - images).mean() for apply in (apply_cv, apply_torch)]
    assert lost[1] == pytest.approx(lost[0], rel=0.05)


def test_a_cutout_paints_its_rectangle_and_nothing_else() -> None:
    black = np.zeros((1, 20, 50, 3), np.uint8)
    params = sampled(black, {"op": "cutout", "size": 0.5, "shade": 200})
    left, top, right, bottom, _ = params.cutouts[0, 0].astype(int)
    expected = cv2.rectangle(black[0].copy(), (left, top), (right - 1, bottom - 1), (200, 200, 200), -1)
    assert expected.any()
    assert np.array_equal(apply_cv(black, params)[0], expected)
    assert np.array_equal(apply_torch(black, params)[0], expected)


def test_a_curve_bends_a_straight_line() -> None:
    line = np.zeros((1, 32, 128, 1), np.uint8)
    line[0, 15:18] = 255
    bent = apply_cv(line, sampled(line, {"op": "curve", "amplitude": 0.25, "cycles": 1}))[0, :, :, 0]
    heights = (bent * np.arange(32)[:, None]).sum(axis=0) / bent.sum(axis=0)
    assert np.ptp(heights) == pytest.approx(2 * 0.25 * 32, abs=1)


def test_nothing_to_do_gives_the_images_back(crops: dict[int, np.ndarray]) -> None:
    params = sampled(crops[3])
    assert np.array_equal(apply_cv(crops[3], params), crops[3])
    assert np.array_equal(apply_torch(crops[3], params), crops[3])


def test_params_of_another_batch_or_size_are_refused(crops: dict[int, np.ndarray]) -> None:
    for apply in (apply_cv, apply_torch):
        with pytest.raises(
            ValueError, match=r"sampled for a batch of \(64, 32, 128\), the images are \(63, 32, 128, 3\)"
        ):
            apply(crops[3][:63], sampled(crops[3], {"op": "flip"}))


@pytest.mark.gpu
@pytest.mark.parametrize("name", preset_names())
def test_the_compiled_engine_on_a_gpu_agrees_too(crops: dict[int, np.ndarray], name: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from inkmill.data.augment.torch_passes import apply_torch as apply

    images = np.tile(crops[3], (8, 1, 1, 1))  # enough rows for blur and JPEG to run on a part of them
    for epoch in (0, 1):  # the first records the pass, the second replays it
        params = Augmentation(load_preset(name)).sample(0, epoch, np.arange(len(images)), 32, 128)
        on_gpu = apply(torch.from_numpy(images).cuda(), params).cpu().numpy()
        assert_close(apply_cv(images, params), on_gpu, PRESETS[name])
