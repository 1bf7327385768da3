from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from inkmill.errors import ConfigError
from inkmill.tasks.recognition.model import Recognizer

Build = Callable[..., Recognizer]


@pytest.mark.parametrize(
    ("backbone", "channels", "steps"),
    [
        ("resnet18", 1, 32),
        ("mobilenetv3_small_050", 3, 32),
        ("convnext_atto", 1, 29),
        ("vit_tiny_patch16_224", 3, 32),
    ],
)
def test_a_timm_model_keeps_a_quarter_of_the_width(build: Build, backbone: str, steps: int, channels: int) -> None:
    model = build(backbone=backbone, input_width=128, input_channel=channels, hidden_size=16, sequence="none").eval()
    assert model.time_steps(32, 128) == steps
    assert model(torch.rand(2, channels, 32, 128)).shape == (2, steps, 11)


def test_every_weight_of_a_timm_model_is_used(build: Build) -> None:
    model = build(backbone="resnet18", input_width=64, hidden_size=16)
    model.loss(model(torch.rand(2, 1, 32, 64)), (torch.tensor([[1, 2]] * 2), torch.tensor([2, 2]))).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_a_size_that_a_timm_model_cannot_take_is_one_sentence(build: Build) -> None:
    with pytest.raises(ConfigError, match="timm's vit_tiny_patch16_224 cannot be the backbone of a 40x100 input"):
        build(backbone="vit_tiny_patch16_224", input_height=40)


def test_a_misspelt_timm_model_names_the_nearest(build: Build) -> None:
    with pytest.raises(ConfigError, match=r"unknown model.backbone 'mobilenet_v3_smal_100' \(did you mean 'mobilenet"):
        build(backbone="mobilenet_v3_smal_100")
