"""The one definition of resize, and how images meet the input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import BUCKET_STEP, Resize, resize, resize_steps


@pytest.fixture(scope="module")
def crops(captchas: Path) -> list[np.ndarray]:
    return [decode(path.read_bytes(), 3) for path in sorted((captchas / "images").iterdir())[:8]]


@pytest.mark.parametrize("size", [(128, 32), (100, 32), (90, 100), (600, 31), (400, 200), (7, 5)])
def test_resize_is_torchs_plain_linear_in_steps_of_at_most_two(crops: list[np.ndarray], size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    for crop in crops:
        planes = torch.from_numpy(crop).permute(2, 0, 1)[None].float()
        for width, height in resize_steps(crop.shape[1], crop.shape[0], *size):
            planes = torch.nn.functional.interpolate(planes, (height, width), mode="bilinear").round()
        theirs = planes[0].permute(1, 2, 0).numpy()
        difference = np.abs(resize(crop, *size) - theirs)
        assert difference.mean() < 0.3
        assert difference.max() <= 2


def test_shrinking_looks_at_every_pixel() -> None:
    """One black column of 240 must not vanish on the way to 30, wherever it stands."""
    for column in range(240):
        image = np.full((80, 240, 1), 255, np.uint8)
        image[:, column] = 0
        assert resize(image, 30, 10).min() < 245


@settings(max_examples=60)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 300))
def test_no_step_shrinks_a_side_below_its_half(columns: int, rows: int, width: int, height: int) -> None:
    steps = resize_steps(columns, rows, width, height)
    assert ([(columns, rows), *steps])[-1] == (width, height)
    for (before_x, before_y), (x, y) in zip([(columns, rows), *steps], steps, strict=False):
        assert 2 * x >= before_x
        assert 2 * y >= before_y
    assert len(steps) <= 14


def test_gray_resizes_as_any_channel_of_a_colour_image(crops: list[np.ndarray]) -> None:
    for size in [(128, 32), (300, 20), (300, 90)]:
        assert np.array_equal(resize(crops[0], *size)[..., 1:2], resize(crops[0][..., 1:2].copy(), *size))


@settings(max_examples=60)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))
def test_resize_keeps_the_range_and_a_flat_image_flat(w: int, h: int, width: int, height: int, channels: int) -> None:
    noise = np.random.default_rng(w * 100 + h).integers(50, 200, (h, w, channels), np.uint8)
    out = resize(noise, width, height)
    assert out.shape == (height, width, channels)
    assert noise.min() <= out.min() <= out.max() <= noise.max()
    assert (resize(np.full((h, w, channels), 93, np.uint8), width, height) == 93).all()


def test_a_very_long_image_shrinks_to_about_its_means() -> None:
    ramp = np.linspace(0, 255, 300_000).astype(np.uint8).reshape(1, -1, 1)
    out = resize(ramp, 128, 32)
    means = np.linspace(1, 254, 128)
    assert np.abs(out[:, :, 0] - means).max() <= 2


def test_the_aspect_ratio_chooses_among_sizes_of_one_area() -> None:
    aspect = Resize(32, 256, 3, "aspect")
    assert [(w, h) for h, w in aspect.sizes()] == [
        *((64, 64), (96, 48), (112, 40), (128, 32), (160, 32), (192, 32), (224, 32), (256, 32))
    ]
    found = {
        size: aspect.apply(np.zeros((*size, 3), np.uint8))[0].shape[:2]
        for size in [*((90, 20), (40, 59), (40, 60), (40, 100), (40, 139), (40, 140), (40, 180), (10, 1000))]
    }
    assert list(found.values()) == [
        *((64, 64), (64, 64), (48, 96), (40, 112), (40, 112), (32, 128), (32, 160), (32, 256))
    ]


@given(st.integers(1, 400), st.integers(1, 400), st.sampled_from([8, 12, 32]), st.integers(4, 9))
def test_aspect_stretches_without_padding(w: int, h: int, height: int, most: int) -> None:
    aspect = Resize(height, most * height, 1, "aspect")
    image, valid = aspect.apply(np.zeros((h, w, 1), np.uint8))
    assert image.shape[:2] in aspect.sizes()
    assert image.shape[1] == valid == aspect.bucket_width(w, h) == aspect.valid_width(w, h)
    assert image.shape[0] * image.shape[1] <= aspect.most_pixels
    assert len(set(aspect.widths())) == len(aspect.widths())  # the width names the bucket


@pytest.mark.parametrize("mode", ["stretch", "pad", "height"])
def test_all_other_modes_have_one_height(mode: str) -> None:
    resize = Resize(48, 200, 1, mode)  # type: ignore[arg-type]
    assert {rows for rows, _ in resize.sizes()} == {48}
    assert resize.widths() == ([32, 64, 96, 128, 160, 192, 200] if mode == "height" else [200])
    assert resize.most_pixels == 48 * 200


@pytest.mark.parametrize(("height", "width"), [(30, 120), (32, 100), (32, 96)])
def test_aspect_refuses_sizes_that_give_no_buckets(height: int, width: int) -> None:
    with pytest.raises(ValueError, match="aspect needs a height that is a multiple of 4"):
        Resize(height, width, 1, "aspect")


def test_stretch_fills_the_input() -> None:
    image, valid = Resize(32, 100, 1).apply(np.zeros((50, 60, 1), np.uint8))
    assert image.shape == (32, 100, 1)
    assert valid == 100


def test_pad_keeps_the_ratio_and_repeats_the_last_column() -> None:
    source = np.random.default_rng(0).integers(0, 256, (64, 100, 3), np.uint8)
    image, valid = Resize(32, 100, 3, "pad").apply(source)
    assert valid == 50
    assert image.shape == (32, 100, 3)
    assert np.array_equal(image[:, :50], resize(source, 50, 32))
    assert (image[:, 50:] == image[:, 49:50]).all()


def test_pad_squeezes_what_is_too_long() -> None:
    image, valid = Resize(32, 100, 1, "pad").apply(np.zeros((10, 400, 1), np.uint8))
    assert image.shape == (32, 100, 1)
    assert valid == 100


@settings(max_examples=60)
@given(st.integers(1, 500), st.integers(1, 100), st.sampled_from(["stretch", "pad", "height"]))
def test_what_is_planned_from_the_size_is_what_apply_gives(w: int, h: int, mode: str) -> None:
    resize = Resize(32, 200, 1, mode)  # type: ignore[arg-type]
    image, valid = resize.apply(np.zeros((h, w, 1), np.uint8))
    assert image.shape == (32, resize.bucket_width(w, h), 1)
    assert valid == resize.valid_width(w, h)
    assert 1 <= valid <= image.shape[1] <= 200
    if mode == "height":
        assert image.shape[1] == 200 or (image.shape[1] % BUCKET_STEP == 0 and image.shape[1] - valid < BUCKET_STEP)


def test_the_digest_tells_fits_apart_and_stays_the_same_between_runs() -> None:
    fits = [Resize(32, 100), Resize(32, 128), Resize(32, 100, 3), Resize(32, 100, 1, "pad")]
    assert len({resize.digest() for resize in fits}) == 4
    assert Resize(32, 100).digest() == "cb51a200bbc53219"


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown fit 'squash'; known: stretch, pad, height"):
        Resize(32, 100, 1, "squash")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected an image of 3 channels"):
        Resize(32, 100, 3).apply(np.zeros((4, 4, 1), np.uint8))
