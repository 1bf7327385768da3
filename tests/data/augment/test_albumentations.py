from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import Augmentation, open_augmentation
from inkmill.data.augment.albumentations import AlbumentationsPipeline
from inkmill.errors import ConfigError, MissingExtraError

A_PIPELINE = {
    "__version__": "2.0.8",
    "transform": {
        "__class_fullname__": "Compose",
        "p": 1.0,
        "transforms": [
            {"__class_fullname__": "Rotate", "p": 0.8, "limit": [-9, 9]},
            {"__class_fullname__": "GaussNoise", "p": 0.8, "std_range": [0.02, 0.05]},
        ],
    },
}


@pytest.fixture
def pipeline(tmp_path: Path) -> AlbumentationsPipeline:
    pytest.importorskip("albumentations")
    file = tmp_path / "pipeline.json"
    file.write_text(json.dumps(A_PIPELINE))
    return AlbumentationsPipeline.from_file(file)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_depends_on_its_index_and_never_on_its_batch_or_worker(
    pipeline: AlbumentationsPipeline, crops: dict[int, np.ndarray], channels: int
) -> None:
    images = crops[channels][:6]
    together = pipeline.apply(images, 1, 2, np.arange(6))
    elsewhere: AlbumentationsPipeline = pickle.loads(pickle.dumps(pipeline))
    for row in (4, 1, 3):
        assert np.array_equal(elsewhere.apply(images[row : row + 1], 1, 2, np.array([row]))[0], together[row])
    assert not np.array_equal(together, images)
    assert not np.array_equal(together, pipeline.apply(images, 1, 3, np.arange(6)))


@pytest.mark.filterwarnings("ignore:Transform .* has no 'p' parameter")
@pytest.mark.parametrize("content", [{"a": 1}, {"transform": {"__class_fullname__": "os.system", "command": "true"}}])
def test_what_is_no_pipeline_is_refused(content: dict) -> None:
    pytest.importorskip("albumentations")
    with pytest.raises(ConfigError, match="no serialised Albumentations pipeline"):
        AlbumentationsPipeline(content)


def test_a_pipeline_that_changes_the_size_is_refused(crops: dict[int, np.ndarray]) -> None:
    pytest.importorskip("albumentations")
    resize = {"__class_fullname__": "Resize", "height": 8, "width": 8, "p": 1.0}
    with pytest.raises(ConfigError, match="leave resizing, normalising and ToTensorV2 out"):
        AlbumentationsPipeline({"transform": resize}).apply(crops[3][:1], 0, 0, np.arange(1))


@pytest.mark.parametrize(("text", "reason"), [("- 1", "got list"), ("{", "cannot be read")])
def test_a_file_that_holds_no_pipeline_is_named(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"pipeline.yaml: .*{reason}"):
        AlbumentationsPipeline.from_file(file)


@pytest.mark.parametrize("other", [{"preset": "tao"}, {"ops": [{"op": "rotate"}]}, {"aug_prob": 0.5}])
def test_a_spec_names_a_pipeline_or_other_changes_and_never_both(other: dict) -> None:
    with pytest.raises(ValidationError, match=f"cannot be combined with {next(iter(other))}: give one of them"):
        AugmentationSpec(albumentations="pipeline.yaml", **other)


def test_a_pipeline_is_not_mistaken_for_an_augmentation_of_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use open_augmentation"):
        Augmentation.from_spec(AugmentationSpec(albumentations="pipeline.yaml"))
    with pytest.raises(ConfigError, match=r"missing.yaml: the Albumentations pipeline cannot be read"):
        open_augmentation(AugmentationSpec(albumentations=str(tmp_path / "missing.yaml")))


def test_without_albumentations_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'inkmill\[albumentations\]'"):
        AlbumentationsPipeline(A_PIPELINE)


def test_a_transform_that_refuses_the_picture_says_so_in_a_sentence() -> None:
    albumentations = pytest.importorskip("albumentations")
    pipeline = AlbumentationsPipeline(albumentations.to_dict(albumentations.Compose([albumentations.ISONoise(p=1)])))
    with pytest.raises(ConfigError, match=r"refuses an image of \(8, 8, 1\): .*channel"):
        pipeline.apply_one(np.zeros((8, 8, 1), np.uint8), np.array([1], np.uint64))
