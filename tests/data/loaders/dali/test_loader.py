"""The DALI loader without a GPU: the samples of every other loader, their pixels within rounding, exact resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from captcha_source import CaptchaSource

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import Augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize, ResizeMode
from inkmill.data.types import Batch
from inkmill.errors import ConfigError, DataError

pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.dali

from inkmill.data.loaders.dali.loader import DaliLoader  # noqa: E402

STRONG = Augmentation.from_spec(AugmentationSpec(preset="scene_text"))


@pytest.fixture(scope="module")
def crops(captchas: Path, tmp_path_factory: pytest.TempPathFactory) -> CaptchaSource:
    """67 crops of many sizes: JPEG in colour and gray, PNG with and without transparency."""
    folder = tmp_path_factory.mktemp("crops")
    random = np.random.default_rng(7)
    names = [line.split("\t")[0] for line in (captchas / "labels.tsv").read_text().splitlines()[:67]]
    for number, name in enumerate(names):
        data = (captchas / name).read_bytes()
        if number % 8 != 7:  # the captchas themselves are transparent
            image = decode(data, 3)
            top, left = random.integers(0, 20), random.integers(0, 60)
            image = np.ascontiguousarray(image[top : random.integers(30, 80), left : random.integers(80, 240), ::-1])
            shown = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if number % 8 == 6 else image
            data = cv2.imencode(".png" if number % 8 == 5 else ".jpg", shown)[1].tobytes()
        (folder / "images").mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return CaptchaSource(folder, names)


@pytest.fixture(scope="module")
def plan(crops: CaptchaSource) -> Callable[..., LoadPlan]:
    def planned(source: CaptchaSource = crops, **changes: Any) -> LoadPlan:
        return LoadPlan(source, **({"resize": Resize(32, 96, 3), "batch_size": 8, "seed": 3} | changes))

    return planned


@pytest.fixture(scope="module")
def loader(plan: Callable[..., LoadPlan]) -> Iterator[DaliLoader]:
    with DaliLoader(plan(augmentation=STRONG)) as loader:
        yield loader


@pytest.fixture(scope="module")
def reference(loader: DaliLoader, snapshot: Callable[..., Any]) -> list[Any]:
    loader.set_epoch(0)
    return [snapshot(loader) for _ in range(3)]


def spread(source: CaptchaSource, folder: Path, index: int, data: bytes) -> CaptchaSource:
    """Return the source with one image replaced."""
    for name in source.names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((source.folder / name).read_bytes())
    (folder / source.names[index]).write_bytes(data)
    return CaptchaSource(folder, source.names)


@pytest.fixture
def poisoned(crops: CaptchaSource, tmp_path: Path) -> CaptchaSource:
    """The crops, one of which looks whole and kills a pipeline: a JPEG whose tables are gone."""
    index = 9
    data = (crops.folder / crops.names[index]).read_bytes()
    return spread(crops, tmp_path, index, data.replace(b"\xff\xdb", b"\xff\xfe"))


def assert_same_samples(batch: Batch, expected: Batch) -> None:
    assert (batch.keys, batch.texts) == (expected.keys, expected.texts)
    assert np.array_equal(batch.index, expected.index)
    assert np.array_equal(batch.widths, expected.widths)
    assert batch.images.shape == expected.images.shape
    assert batch.images.dtype == np.uint8


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["stretch", "pad", "height"])
def test_fitted_pictures_are_those_of_opencv_within_rounding(
    plan: Callable[..., LoadPlan], mode: ResizeMode, channels: Any
) -> None:
    wanted = plan(resize=Resize(32, 160, channels, mode))
    inline = make_loader(wanted)
    with DaliLoader(inline.plan) as dali:
        for batch, expected in zip(dali, inline, strict=True):
            assert_same_samples(batch, expected)
            difference = np.abs(batch.images.astype(int) - expected.images)
            assert difference.mean() < 0.25
            assert difference.max() <= 2


@pytest.mark.parametrize("mode", ["stretch", "pad"])
def test_large_pictures_are_halved_as_often_as_by_opencv(
    plan: Callable[..., LoadPlan], crops: CaptchaSource, tmp_path: Path, mode: ResizeMode
) -> None:
    (tmp_path / "images").mkdir()
    names = crops.names[:12]
    for number, name in enumerate(names):
        image = decode((crops.folder / name).read_bytes(), 3)[:, :, ::-1]
        large = cv2.resize(image, (90 + number * 130, 40 + number * 40), interpolation=cv2.INTER_CUBIC)
        (tmp_path / name).write_bytes(cv2.imencode(".jpg", large)[1].tobytes())
    wanted = plan(CaptchaSource(tmp_path, names), resize=Resize(32, 96, 3, mode))
    with DaliLoader(wanted) as dali:
        for batch, expected in zip(dali, make_loader(wanted), strict=True):
            assert_same_samples(batch, expected)
            assert np.abs(batch.images.astype(int) - expected.images).max() <= 3


def test_augmented_pictures_are_those_of_opencv(plan: Callable[..., LoadPlan]) -> None:
    wanted = plan(augmentation=STRONG)
    with DaliLoader(wanted) as dali:
        for batch, expected in zip(dali, make_loader(wanted), strict=True):
            assert_same_samples(batch, expected)
            assert np.abs(batch.images.astype(int) - expected.images).mean() < 0.6


def test_changes_for_another_engine_are_handed_over(plan: Callable[..., LoadPlan]) -> None:
    wanted = plan(augmentation=STRONG)
    with DaliLoader(wanted, augment_on="gpu") as dali:
        for batch, expected in zip(dali, make_loader(wanted, augment_on="gpu"), strict=True):
            one, two = (some.augmentation.params.values for some in (batch, expected))
            assert np.array_equal(one, two)
            assert np.abs(batch.images.astype(int) - expected.images).max() <= 2


def test_resume_in_a_new_loader_gives_the_same_bytes(
    plan: Callable[..., LoadPlan], reference: list[Any], snapshot: Callable[..., Any]
) -> None:
    with make_loader(plan(augmentation=STRONG)) as inline:
        list(islice(inline, 6))
        state = inline.state_dict()
    with DaliLoader(plan(augmentation=STRONG), 2) as resumed:
        resumed.load_state_dict(state)
        assert snapshot(resumed) == reference[0][6:]


@pytest.mark.parametrize(("tier", "augment_on"), [("ram", "cpu"), ("disk", "dali")])
def test_cached_pictures_are_only_augmented(
    plan: Callable[..., LoadPlan], tmp_path: Path, tier: Any, augment_on: Any
) -> None:
    wanted = plan(augmentation=STRONG, cache=CacheConfig(tier, folder=tmp_path))
    expected = list(make_loader(plan(augmentation=STRONG)))
    with DaliLoader(wanted, 1, augment_on) as dali:
        for epoch in (0, 0):
            dali.set_epoch(epoch)
            for batch, other in zip(dali, expected, strict=True):
                assert_same_samples(batch, other)
                assert np.abs(batch.images.astype(int) - other.images).mean() < 0.5
        assert dali.stats.cached >= 67


def test_a_picture_that_kills_the_pipeline_is_an_error_that_names_it(
    plan: Callable[..., LoadPlan], poisoned: CaptchaSource
) -> None:
    key = poisoned.names[9]
    with DaliLoader(plan(poisoned)) as loader, pytest.raises(DataError, match=f"sample '{key}' of captchas"):
        list(loader)


def test_a_pipeline_that_died_is_built_anew_without_the_bad_sample(
    plan: Callable[..., LoadPlan], poisoned: CaptchaSource
) -> None:
    bad = poisoned.names[9]
    with DaliLoader(plan(poisoned, on_bad_sample="skip", max_bad=0.05, augmentation=STRONG)) as loader:
        for epoch in (1, 2):
            keys = [key for batch in loader for key in batch.keys]
            assert sorted(keys) == sorted(set(poisoned.names) - {bad})
            assert loader.stats.left_out == epoch
        assert [key for keys in loader.stats.skipped.values() for key in keys] == [bad]
        assert sum("pipeline died" in note for note in loader.stats.notes) == 1


def test_a_picture_cut_short_is_found_before_dali_sees_it(
    plan: Callable[..., LoadPlan], crops: CaptchaSource, tmp_path: Path
) -> None:
    whole = (crops.folder / crops.names[0]).read_bytes()
    source = spread(crops, tmp_path, 0, whole[: len(whole) // 2])
    with DaliLoader(plan(source, on_bad_sample="skip", max_bad=0.05)) as loader:
        assert sum(len(batch) for batch in loader) == 66
        assert list(loader.stats.skipped) == ["the JPEG is cut short: it has no end marker"]
        assert not any("died" in note for note in loader.stats.notes)


def test_a_gpu_that_dali_cannot_use_is_an_error_that_helps(plan: Callable[..., LoadPlan]) -> None:
    with (
        DaliLoader(plan(), device="cuda:99", decode_on="mixed") as loader,
        pytest.raises(ConfigError, match=r"DALI does not start here: .* \(set dataset.loader=workers\)"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("options", [{}, {"device": "cuda", "augment_on": "cpu"}])
def test_decoding_on_a_gpu_is_refused_where_pictures_are_wanted_on_the_cpu(
    plan: Callable[..., LoadPlan], options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"decode_on=mixed leaves pictures on the GPU.*: use decode_on=cpu"):
        DaliLoader(plan(), decode_on="mixed", **options)
