"""Loaders with cached pictures, beyond what test_conformance.py asks of every loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captcha_source import MissingSource

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize, ResizeMode

AUGMENTED = Augmentation.from_spec(AugmentationSpec(aug_prob=1.0))


def test_a_later_run_reads_no_image_again(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], captchas: Path, tmp_path: Path
) -> None:
    plan = captcha_plan(cache=CacheConfig("disk", folder=tmp_path))
    first = snapshot(make_loader(plan))
    gone = LoadPlan(MissingSource.first(captchas, 67), plan.resize, batch_size=8, seed=3, cache=plan.cache)
    loader = make_loader(gone)
    assert snapshot(loader) == first
    assert loader.stats.cached == 67


@pytest.mark.parametrize("mode", ["height", "aspect"])
def test_images_of_several_sizes_are_cached(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], tmp_path: Path, mode: ResizeMode
) -> None:
    plan = captcha_plan(resize=Resize(32, 192, 1, mode), cache=CacheConfig("disk", folder=tmp_path))
    without = captcha_plan(resize=Resize(32, 192, 1, mode))
    assert snapshot(make_loader(plan)) == snapshot(make_loader(without))
    again = make_loader(plan)
    assert snapshot(again) == snapshot(make_loader(without))
    assert again.stats.cached == 67


def test_a_bad_sample_is_not_cached(captcha_plan: Callable[..., LoadPlan], tmp_path: Path) -> None:
    plan = captcha_plan(
        faults={"broken": frozenset({5})},
        on_bad_sample="skip",
        cache=CacheConfig("disk", folder=tmp_path),
        shuffle=False,
    )
    for _ in range(2):
        loader = make_loader(plan)
        assert [index for batch in loader for index in batch.index] == [*range(5), *range(6, 67)]
        assert loader.stats.bad_samples == 1


def test_augmentation_left_to_the_device_comes_along(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any]
) -> None:
    from inkmill.data.augment.cpu import apply_cv

    done = snapshot(make_loader(captcha_plan(augmentation=AUGMENTED)))
    with make_loader(captcha_plan(augmentation=AUGMENTED), 1, augment_on="gpu") as loader:
        batches = list(loader)
    for batch in batches:
        batch.images = apply_cv(batch.images, batch.augmentation.params)
    assert snapshot(batches) == done
    assert snapshot(batches) != snapshot(make_loader(captcha_plan()))
