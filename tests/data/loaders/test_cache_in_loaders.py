"""Loaders with cached pictures: the same batches, and less work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from captcha_source import MissingSource

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize

HALF = 30 * 32 * 64 * 3 / 2**30  # GiB: room for 30 of the 67 pictures
AUGMENTED = Augmentation.from_spec(AugmentationSpec(aug_prob=1.0))


@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (2, "workers")])
@pytest.mark.parametrize(("tier", "max_gib", "cached"), [("disk", 1, 67), ("ram", 1, 67), ("disk", HALF, 30)])
def test_batches_are_the_same_with_and_without(
    captcha_plan: Callable[..., LoadPlan],
    snapshot: Callable[..., Any],
    tmp_path: Path,
    workers: int,
    kind: str,
    tier: Literal["disk", "ram"],
    max_gib: float,
    cached: int,
) -> None:
    without = make_loader(captcha_plan(augmentation=AUGMENTED))
    cache = CacheConfig(tier, max_gib, tmp_path)
    with make_loader(captcha_plan(augmentation=AUGMENTED, cache=cache), workers, kind) as loader:
        for epoch in range(3):
            assert snapshot(loader) == snapshot(without)
            assert workers or loader.stats.cached == cached * epoch
        # Workers begin an epoch while the last one ends, so two epochs fill the store between them.
        assert cached <= loader.stats.cached <= 3 * cached
        assert bool(loader.stats.notes) == (cached < 67)


def test_a_later_run_reads_no_image_again(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], captchas: Path, tmp_path: Path
) -> None:
    plan = captcha_plan(cache=CacheConfig("disk", folder=tmp_path))
    first = snapshot(make_loader(plan))
    gone = LoadPlan(MissingSource.first(captchas, 67), plan.resize, batch_size=8, seed=3, cache=plan.cache)
    loader = make_loader(gone)
    assert snapshot(loader) == first
    assert loader.stats.cached == 67


def test_pictures_of_free_width_are_kept(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], tmp_path: Path
) -> None:
    plan = captcha_plan(resize=Resize(32, 192, 1, "height"), cache=CacheConfig("disk", folder=tmp_path))
    without = captcha_plan(resize=Resize(32, 192, 1, "height"))
    assert snapshot(make_loader(plan)) == snapshot(make_loader(without))
    again = make_loader(plan)
    assert snapshot(again) == snapshot(make_loader(without))
    assert again.stats.cached == 67


def test_a_bad_sample_is_not_kept(captcha_plan: Callable[..., LoadPlan], tmp_path: Path) -> None:
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


def test_without_an_engine_the_changes_come_along(
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
