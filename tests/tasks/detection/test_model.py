"""The detector's network: sizes, targets on its device, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inkmill.config.model import ModelSpec
from inkmill.data.types import Batch, Polygons
from inkmill.errors import ConfigError
from inkmill.tasks.detection.model import Detector, maps_on_cpu
from inkmill.tasks.detection.spec import DetectionSection
from inkmill.tasks.detection.task import Detection

BOX = np.array([[10, 20], [80, 20], [80, 44], [10, 44]], np.float32)


def detector(
    backbone: str = "tiny", height: int = 64, width: int = 96, **section: object
) -> tuple[Detection, Detector]:
    model = ModelSpec(backbone=backbone, input_height=height, input_width=width, input_channel=3)
    task = Detection(model, DetectionSection(**section))
    return task, task.build()


@pytest.mark.parametrize(("backbone", "most"), [("tiny", 1.0), ("small", 4.5), ("base", 27.0)])
def test_the_named_detectors_have_their_sizes(backbone: str, most: float) -> None:
    with torch.device("meta"):
        _, model = detector(backbone)
    assert most / 2 < sum(parameter.numel() for parameter in model.parameters()) / 1e6 < most


@pytest.mark.parametrize("backbone", ["tiny", "mobilenetv3_small_100"])
@pytest.mark.parametrize("loss", ["dice_focal", "bce"])
def test_maps_have_half_the_pictures_size_and_every_weight_learns(backbone: str, loss: str) -> None:
    task, model = detector(backbone, loss=loss)
    truths = [Polygons((BOX,), (False,)), Polygons((), ())]
    images = torch.randn(2, 3, 64, 96)
    batch = Batch(None, np.zeros(2, np.int32), truths, ["a", "b"], np.arange(2))
    targets = model.to_targets(task.encode(truths), batch, images)
    outputs = model(images)
    assert [tuple(one.shape) for one in outputs] == [(2, 32, 48)] * 2
    model.loss(outputs, targets).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    found = model.eval().outputs(images, ("probabilities",))["probabilities"]
    assert found.shape == (2, 32, 48)
    assert bool(((found >= 0) & (found <= 1)).all())


def test_targets_follow_the_matrix_of_their_picture() -> None:
    task, _ = detector()
    truths = [Polygons((BOX * 2 + 6,), (False,)), Polygons((BOX,), (False,))]
    matrices = np.array([[[0.5, 0, -3], [0, 0.5, -3], [0, 0, 1]], np.eye(3)], np.float32)
    maps = maps_on_cpu(task.encode(truths), matrices, (64, 96), task.map_options, torch.device("cpu"))
    assert float(maps[0, 0].sum()) > 0
    assert torch.allclose(maps[0], maps[1])


@pytest.mark.parametrize(("key", "value"), [("height", 48), ("width", 100)])
def test_an_input_that_is_no_multiple_of_32_is_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"input_{key} is {value}.*(32|64)"):
        detector(**{key: value})


def test_an_unknown_backbone_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"'smal'.*small"):
        detector("smal")


def test_a_backbone_without_a_map_of_a_quarter_is_refused() -> None:
    with pytest.raises(ConfigError, match="vit_tiny_patch16_224 cannot be the backbone of a detector"):
        detector("vit_tiny_patch16_224")
