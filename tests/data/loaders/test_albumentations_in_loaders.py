"""An Albumentations pipeline gives the same bytes from every loader."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import pytest
from captcha_source import CaptchaSource, PaintedSource

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import AlbumentationsPipeline, open_augmentation
from inkmill.data.loaders import Loader, LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.errors import ConfigError, DataError

pytest.importorskip("albumentations")

CHANGES = [
    {"__class_fullname__": "Rotate", "p": 0.8, "limit": [-9, 9]},
    {"__class_fullname__": "GaussNoise", "p": 0.8, "std_range": [0.02, 0.05]},
    {"__class_fullname__": "ImageCompression", "p": 0.3, "quality_range": [30, 90]},
]
RESIZE = [{"__class_fullname__": "Resize", "height": 8, "width": 8, "p": 1.0}]


def dali(plan: LoadPlan) -> Loader:
    pytest.importorskip("nvidia.dali")
    from inkmill.data.loaders.dali.loader import DaliLoader

    return DaliLoader(plan)


OTHERS = {
    "workers": lambda plan: make_loader(plan, 1),
    "dali": dali,
}
BY_NAME = [pytest.param(name, marks=pytest.mark.dali if name == "dali" else ()) for name in OTHERS]


def pipeline(folder: Path, changes: list[dict[str, Any]]) -> AlbumentationsPipeline:
    file = folder / "pipeline.json"
    compose = {"__class_fullname__": "Compose", "p": 1.0, "transforms": changes}
    file.write_text(json.dumps({"__version__": "2.0.8", "transform": compose}))
    augmentation = open_augmentation(AugmentationSpec(albumentations=str(file)))
    assert isinstance(augmentation, AlbumentationsPipeline)
    return augmentation


@pytest.fixture(scope="module")
def plan(captchas: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadPlan:
    """JPEGs that have the input's size already, so that DALI's resize, which rounds otherwise, has nothing to do."""
    folder = tmp_path_factory.mktemp("resized")
    source, resize = CaptchaSource.first(captchas, 20), Resize(32, 64, 3)
    (folder / "images").mkdir()
    for index, name in enumerate(source.names):
        image, _ = resize.apply(decode(source.get(index).image, 3))
        (folder / name).write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
    changes = pipeline(folder, CHANGES)
    return LoadPlan(CaptchaSource(folder, source.names), resize, augmentation=changes, batch_size=8, seed=3)


@pytest.mark.parametrize("other", BY_NAME)
def test_every_loader_gives_the_same_bytes(plan: LoadPlan, snapshot: Callable[..., Any], other: str) -> None:
    inline = make_loader(plan)
    expected = [snapshot(inline) for _ in range(2)]
    assert expected[0] != snapshot(make_loader(replace(plan, augmentation=None)))
    with OTHERS[other](plan) as loader:
        assert [snapshot(loader) for _ in range(2)] == expected


@pytest.mark.parametrize("other", BY_NAME[1:])
def test_kept_pictures_give_them_too(plan: LoadPlan, snapshot: Callable[..., Any], other: str) -> None:
    inline = make_loader(plan)
    expected = [snapshot(inline) for _ in range(2)]
    with OTHERS[other](replace(plan, cache=CacheConfig("ram"))) as loader:
        assert [snapshot(loader) for _ in range(2)] == expected


@pytest.mark.parametrize("other", BY_NAME)
def test_a_pipeline_that_changes_the_size_is_one_sentence(plan: LoadPlan, tmp_path: Path, other: str) -> None:
    resizes = replace(plan, augmentation=pipeline(tmp_path, RESIZE))
    with OTHERS[other](resizes) as loader, pytest.raises((ConfigError, DataError), match="must keep an image uint8"):
        list(loader)


@pytest.mark.parametrize("other", BY_NAME[1:])
def test_polygons_which_no_pipeline_moves_are_refused(plan: LoadPlan, other: str) -> None:
    painted = replace(plan, source=PaintedSource(6))
    with OTHERS[other](painted) as loader, pytest.raises(ConfigError, match="polygons cannot follow"):
        list(loader)


def test_a_gpu_is_not_asked_to_run_it(plan: LoadPlan) -> None:
    with pytest.raises(ConfigError, match="runs on the CPU, where batches are made"):
        make_loader(plan, augment_on="gpu")
