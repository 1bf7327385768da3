"""Texts, polygons and class names pass through loading; polygons stay where their picture shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from captcha_source import PaintedSource

from inkmill.data.augment import Augmentation
from inkmill.data.augment.ops import parse_ops
from inkmill.data.loaders import Loader, LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize, ResizeMode
from inkmill.data.types import Batch, Labels, Polygons, Target, Text

COUNT, EPOCHS = 24, 4
MOVING = Augmentation(
    parse_ops(
        [
            {"op": "rotate", "degrees": 20},
            {"op": "shear"},
            {"op": "scale", "factor": [0.8, 1.3]},
            {"op": "shift", "x": [-0.2, 0.2]},
            {"op": "perspective"},
            {"op": "curve"},
            {"op": "elastic"},
            {"op": "noise", "std": [0, 5]},
        ]
    )
)


def plan(mode: ResizeMode = "pad", **changes: Any) -> LoadPlan:
    options = {"augmentation": MOVING, "batch_size": 7, "seed": 5} | changes
    return LoadPlan(PaintedSource(COUNT), Resize(96, 192, 3, mode), **options)


def facts(target: Target) -> Any:
    if isinstance(target, Polygons):
        return [points.tobytes() for points in target.points], target.ignore, target.texts
    return target


def targets_of(loader: Loader, epochs: int = 2) -> dict[tuple[int, str], Any]:
    return {
        (epoch, key): facts(target)
        for epoch in range(epochs)
        for batch in loader
        for key, target in zip(batch.keys, batch.targets, strict=True)
    }


def overlap(picture: np.ndarray, polygons: Polygons) -> float:
    """Intersection over union of the painted region of a picture and its polygon; 1 where neither is left."""
    seen = (picture[:, :, 0].astype(int) - picture[:, :, 1]) > 90
    drawn = np.zeros(seen.shape, np.uint8)
    if "painted" in polygons.texts:
        corners = polygons.points[polygons.texts.index("painted")]
        cv2.fillPoly(drawn, [np.rint(corners * 16).astype(np.int32)], 1, shift=4)
    elif seen.mean() < 0.05:
        return 1.0
    return float((seen & (drawn > 0)).sum() / (seen | (drawn > 0)).sum())


def overlaps(batches: list[Batch]) -> list[float]:
    return [
        overlap(np.asarray(image), target)
        for batch in batches
        for image, target in zip(batch.images, batch.targets, strict=True)
        if isinstance(target, Polygons)
    ]


@pytest.mark.parametrize("augmentation", [None, MOVING], ids=["resized", "augmented"])
@pytest.mark.parametrize("mode", ["stretch", "pad", "height"])
def test_polygons_lie_where_their_picture_shows_them(mode: ResizeMode, augmentation: Augmentation | None) -> None:
    loader = make_loader(plan(mode, augmentation=augmentation))
    found = overlaps([batch for _ in range(EPOCHS) for batch in loader])
    assert len(found) == EPOCHS * COUNT / 3
    assert min(found) >= 0.9
    assert np.mean(found) > 0.95


def test_what_is_dropped_is_counted_by_reason_and_the_rest_stays_aligned() -> None:
    loader = make_loader(plan(augmentation=None))
    targets = [target for batch in loader for target in batch.targets if isinstance(target, Polygons)]
    assert all(target.texts == ("", "painted") and target.ignore == (True, False) for target in targets)
    assert loader.stats.regions == {"degenerate": COUNT // 3, "outside": COUNT // 3}


def test_texts_and_class_names_pass_unchanged() -> None:
    source = PaintedSource(COUNT)
    targets = {
        key: target for batch in make_loader(plan()) for key, target in zip(batch.keys, batch.targets, strict=True)
    }
    for index in range(COUNT):
        if not isinstance(source.target(index), Polygons):
            assert targets[source.key(index)] == source.target(index)
    assert {type(target) for target in targets.values()} == {Text, Labels, Polygons}


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_cached_images_have_the_same_targets(tier: Any, tmp_path: Path) -> None:
    expected = targets_of(make_loader(plan()))
    with make_loader(plan(cache=CacheConfig(tier, folder=tmp_path))) as loader:
        assert targets_of(loader) == expected
        assert loader.stats.cached == COUNT


def test_targets_belong_to_the_picture_that_the_device_will_make() -> None:
    wanted = plan()
    assert targets_of(make_loader(wanted, augment_on="gpu")) == targets_of(make_loader(wanted))
