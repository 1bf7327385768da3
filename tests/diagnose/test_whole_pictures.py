"""What diagnose needs of sets of whole pictures: batches from memory, and the size of a cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.ops import parse_ops
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.pages import PackedPages, with_sizes
from inkmill.data.pipeline.pages import PageResize, page_bytes
from inkmill.data.sources import open_source
from inkmill.diagnose.harness import MemoryLoader
from inkmill.diagnose.probe import measure_stages
from inkmill.perf.predict import bytes_to_keep


@pytest.fixture
def plan(tmp_path: Path) -> LoadPlan:
    rng = np.random.default_rng(0)
    lines = []
    for number, size in enumerate(((60, 90), (90, 60), (64, 64), (50, 120))):
        cv2.imwrite(str(tmp_path / f"{number}.png"), rng.integers(0, 255, (*size, 3), np.uint8))
        region = '[{"transcription": "a", "points": [[5, 5], [40, 5], [40, 20], [5, 20]]}]'
        lines.append(f"{number}.png\t{region}\n")
    (tmp_path / "Label.txt").write_text("".join(lines))
    augmentation = Augmentation(parse_ops([{"op": "crop"}])).for_windows()
    source = open_source(SourceSpec(path=str(tmp_path)))
    return with_sizes(LoadPlan(source, PageResize(64, 128, 3), augmentation, batch_size=2, window=(32, 32)))


def test_batches_from_memory_are_those_of_the_plan(plan: LoadPlan) -> None:
    with make_loader(plan) as real, MemoryLoader(plan, "cpu") as memory:
        for ours, theirs in zip(memory, real, strict=True):
            assert np.array_equal(ours.images, theirs.images)
            assert np.array_equal(ours.matrix, theirs.matrix)


def test_a_gpu_gets_them_packed_and_may_take_one_again_and_again(plan: LoadPlan) -> None:
    from inkmill.training.batches import augmented_images

    with MemoryLoader(plan, "gpu") as memory:
        batch = next(iter(memory))
        assert isinstance(batch.images, PackedPages)
        first, again = augmented_images(batch), augmented_images(batch)
    assert first.shape == (2, 32, 32, 3)
    assert bool((first == again).all())


def test_the_size_of_a_cache_is_told_before_the_pictures_are_measured(plan: LoadPlan) -> None:
    sizes = page_bytes(plan.resize, plan.sizes)
    assert sizes is not None
    assert bytes_to_keep(plan) == bytes_to_keep(replace(plan, sizes=None)) == sizes.sum()


def test_the_stages_of_whole_pictures_are_clocked(plan: LoadPlan) -> None:
    times = measure_stages(plan, False, 0.05)
    assert {"decode", "resize", "augment", "cache"} <= times.keys()
