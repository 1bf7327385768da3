from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import load_model, save_model
from inkmill.nn.fake_int8 import FakeInt8Conv2d, measure
from inkmill.nn.narrow import cut
from inkmill.nn.simulate import layers_in_float, layers_in_int8, simulate_int8
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import Recognizer
from inkmill.tasks.recognition.task import Recognition

Build = Callable[..., Recognizer]
SMALL = {"input_width": 64, "input_height": 32, "feature_channel": 32, "hidden_size": 16}


def pictures(model: Recognizer) -> Tensor:
    spec = model.spec
    torch.manual_seed(1)
    return torch.rand(4, spec.input_channel, spec.input_height, spec.input_width) * 2 - 1


@torch.no_grad()
def used(model: Recognizer) -> Recognizer:
    """Give batch norms statistics and factors, as training does."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 2)
            part.weight.uniform_(0.5, 1.5)
            part.bias.normal_(0, 0.2)
    return model.eval()


@torch.no_grad()
def measured(model: Recognizer) -> Tensor:
    """Measure the ranges and return the scores in float, which come on the way."""
    measure(model.eval(), 1.0)
    targets = torch.ones(4, 1, dtype=torch.int64) if model.head.taught_by_targets else None
    scores: Tensor = model(pictures(model), targets)
    measure(model, None)
    return scores


@pytest.mark.parametrize(
    ("keys", "in_float"),
    [
        ({"backbone": "Tiny", "sequence": "none"}, ["backbone.position.mix"]),
        (
            {"backbone": "ResNet", "TPS": True},
            ["rectifier.hidden.0", "rectifier.points", "neck.0.rnn", "neck.1.rnn"],
        ),
        ({"backbone": "ConvMix", "sequence": "none", "prediction": "Slots"}, []),
        (
            {"backbone": "VGG", "sequence": "none", "prediction": "Attn"},
            ["head.key", "head.query", "head.score", "head.cell", "head.classes"],
        ),
        ({"backbone": "FAN_tiny_2X", "sequence": "none"}, ["backbone.position.mix"]),
        ({"backbone": "mobilenetv3_small_100", "sequence": "none"}, []),
    ],
    ids=lambda value: value["backbone"] if isinstance(value, dict) else "",
)
def test_without_rounding_the_model_computes_as_before(build: Build, keys: dict[str, Any], in_float: list[str]) -> None:
    model = used(build(**SMALL | keys))
    targets = torch.ones(4, 1, dtype=torch.int64) if model.head.taught_by_targets else None
    with torch.no_grad():
        before = model(pictures(model), targets)
    simulate_int8(model)
    assert layers_in_float(model) == in_float
    assert len(layers_in_int8(model)) >= 7
    torch.testing.assert_close(measured(model), before, atol=1e-4, rtol=1e-3)
    with torch.no_grad():
        after = model(pictures(model), targets)
    assert 0 < float((after - before).abs().max()) < 0.2 * float(before.abs().max())
    assert not [name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d) and "near" not in name]


def test_what_a_convolution_gave_the_next_one_does_not_measure_again(build: Build) -> None:
    model = build(backbone="ResNet", quantize=True, **SMALL)
    parts = dict(model.backbone.named_modules())
    first, second, block = parts["stem.0.0"], parts["stem.1.0"], parts["stage1.0"]
    assert isinstance(first, FakeInt8Conv2d)
    assert first.reads is not None
    assert first.gives.before_relu
    assert isinstance(second, FakeInt8Conv2d)
    assert second.reads is None
    assert second.input_range is first.gives
    assert block.conv1.input_range is second.gives  # type: ignore[union-attr]  # a pooling stands between
    assert not block.conv2.gives.before_relu  # type: ignore[union-attr]  # the shortcut is added first
    assert parts["stage1.1.0"].reads is not None  # type: ignore[union-attr]


def test_a_file_keeps_the_ranges_and_tells_what_it_is(build: Build, tmp_path: Path) -> None:
    model = build(backbone="Tiny", sequence="none", quantize=True, input_width=64)
    measured(model)
    card = ModelHeader.of(Recognition(model.spec, Charset(tuple("0123456789")), 4))
    save_model(tmp_path / "reader.safetensors", model.state_dict(), card)
    again, its_card = load_model(tmp_path / "reader.safetensors")
    assert its_card.model.quantize
    assert layers_in_int8(again) == layers_in_int8(model)
    with torch.no_grad():
        torch.testing.assert_close(again(pictures(model)), model(pictures(model)), atol=0, rtol=0)
    assert [name for name in model.state_dict() if name.endswith("gives.largest")]
    assert min(float(range_) for name, range_ in again.state_dict().items() if name.endswith(".largest")) > 0


def test_a_pruned_model_is_folded_and_found_again_in_its_own_sizes(build: Build, tmp_path: Path) -> None:
    narrow = build(backbone="Tiny", sequence="none", input_width=64)
    fewer = {"convolutions.1.0.weight": (0, 4, 0, 0), "convolutions.0.0.weight": (4, 0, 0, 0)}
    fewer |= {f"convolutions.0.1.{name}": (4,) for name in ("weight", "bias", "running_mean", "running_var")}
    cut(narrow, {f"backbone.{name}": less for name, less in fewer.items()})
    simulate_int8(used(narrow))
    measured(narrow)
    card = ModelHeader.of(Recognition(narrow.spec, Charset(tuple("0123456789")), 4))
    save_model(tmp_path / "reader.safetensors", narrow.state_dict(), card)
    again, _ = load_model(tmp_path / "reader.safetensors")
    assert again.get_parameter("backbone.convolutions.0.0.weight").shape == (12, 1, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(again(pictures(narrow)), narrow(pictures(narrow)), atol=0, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch 2.11's own compiler
def test_training_moves_float_weights_under_autocast_and_in_a_recorded_backbone(build: Build) -> None:
    model = build(backbone="Tiny", sequence="none", quantize=True, input_width=64)
    measured(model)
    model.train()
    model.backbone.compile(backend="aot_eager", dynamic=False)
    weights = model.get_parameter("backbone.convolutions.0.0.weight")
    reads = model.get_buffer("backbone.convolutions.0.0.reads.largest")
    before = float(reads)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(2 * pictures(model))
    scores.float().square().sum().backward()
    assert weights.dtype == torch.float32
    assert weights.grad is not None
    assert weights.grad.isfinite().all()
    assert weights.grad.abs().max() > 0
    assert float(reads) == pytest.approx(1.01 * before, rel=1e-3)
