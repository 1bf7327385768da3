from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError
from inkmill.tasks.recognition.model import Recognizer, build_recognizer

Build = Callable[..., Recognizer]


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def targets_of(prediction: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels of three characters, as the codecs write them."""
    ids = torch.tensor([[3, 4, 5]] * batch)
    lengths = torch.full((batch,), 3)
    if prediction == "Attn":
        ids = torch.cat([ids, torch.tensor([[1, 0]] * batch)], dim=1)
    elif prediction == "Slots":
        ids = torch.cat([ids, torch.tensor([[0]] * batch)], dim=1)
    return ids, lengths


def test_the_default_of_tao_has_its_parameter_counts() -> None:
    ctc = build_recognizer(ModelSpec(TPS=True), 37, 25)
    assert count(ctc) == 48_858_093
    assert count(ctc.rectifier) == 1_692_392
    assert count(ctc.backbone) == 44_263_904
    assert count(ctc.neck) == 2_892_288
    assert count(ctc.head) == 257 * 37
    attention = build_recognizer(ModelSpec(backbone="Tiny", prediction="Attn"), 38, 25)
    assert count(ctc) - count(ctc.head) + count(attention.head) == 49_555_182
    assert ctc.time_steps(32, 100) == 26


@pytest.mark.parametrize(("prediction", "classes", "millions"), [("Attn", 63, 11.05), ("CTC", 62, 10.32)])
def test_fan_with_spline_has_the_size_of_taos(build: Build, prediction: str, classes: int, millions: float) -> None:
    keys: dict[str, Any] = {"backbone": "FAN_tiny_2X", "TPS": True, "input_height": 64, "input_width": 200}
    assert round(count(build(classes, 25, prediction=prediction, **keys)) / 1e6, 2) == millions


@pytest.mark.parametrize("prediction", ["CTC", "Attn", "Slots"])
@pytest.mark.parametrize("backbone", ["ResNet", "ResNet2X", "VGG", "FAN_tiny_2X", "Tiny", "ConvMix", "SVTRLite"])
def test_every_backbone_and_head_learns_from_a_batch(build: Build, backbone: str, prediction: str) -> None:
    channels, sequence = (3, "none") if prediction == "Slots" else (1, "BiLSTM")
    model = build(
        backbone=backbone,
        prediction=prediction,
        input_channel=channels,
        sequence=sequence,
        input_width=32,
        feature_channel=16,
        hidden_size=16,
    )
    images = torch.rand(2, channels, 32, 32) * 2 - 1
    ids, lengths = targets_of(prediction, 2)
    logits = model(images, ids)
    loss = model.loss(logits, (ids, lengths))
    loss.backward()
    assert logits.shape[0] == 2
    assert logits.shape[2] == 11
    assert loss.isfinite()
    assert loss.dtype == torch.float32
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == []  # DDP would stop at them
    model.eval()
    read, probability = model.read(images)
    assert read.dtype == torch.int32
    assert probability.dtype == torch.float32
    assert read.shape == probability.shape == (2, model.time_steps(32, 32))
    assert ((probability >= 0) & (probability <= 1.000001)).all()


@pytest.mark.parametrize("prediction", ["CTC", "Attn", "Slots"])
def test_sixteen_bit_autocast_gives_a_finite_32_bit_loss(build: Build, prediction: str) -> None:
    model = build(backbone="Tiny", prediction=prediction, TPS=True)
    ids, lengths = targets_of(prediction, 2)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.rand(2, 1, 32, 100), ids)
        loss = model.loss(logits, (ids, lengths))
    loss.backward()
    assert loss.isfinite()
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("prediction", ["CTC", "Attn", "Slots"])
@pytest.mark.parametrize("TPS", [False, True])
def test_a_batch_reads_as_one_by_one(build: Build, prediction: str, TPS: bool) -> None:  # noqa: N803
    model = build(backbone="Tiny", prediction=prediction, max_label_length=9, TPS=TPS, hidden_size=32)
    images = torch.rand(5, 1, 32, 100, generator=torch.Generator().manual_seed(1)) * 2 - 1
    model(images, targets_of(prediction, 5)[0])  # gives the batch norms something to remember
    model.eval()
    together, probability = model.read(images)
    alone = [model.read(image[None]) for image in images]
    assert torch.equal(together, torch.cat([ids for ids, _ in alone]))
    assert torch.allclose(probability, torch.cat([p for _, p in alone]), atol=1e-5)


@settings(max_examples=10)
@given(
    width=st.integers(32, 300), backbone=st.sampled_from(["Tiny", "ConvMix", "SVTRLite", "ResNet", "ResNet2X", "VGG"])
)
def test_time_steps_are_what_the_model_gives_at_any_width(width: int, backbone: str) -> None:
    spec = ModelSpec(backbone=backbone, feature_channel=32, hidden_size=8, input_resize="height")
    model = build_recognizer(spec, 11, 4).eval()
    assert model.time_steps(32, width) == model.read(torch.zeros(1, 1, 32, width))[0].shape[1]


def test_time_steps_leave_the_model_as_it_was(build: Build) -> None:
    model = build(backbone="Tiny")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert model.time_steps(32, 96) == 24
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("backbone", "height", "width", "says"),
    [
        ("ResNet", 31, 100, "model.input_height is 31, but backbone ResNet needs at least 32"),
        ("VGG", 16, 100, "needs at least 32"),
        ("FAN_tiny_2X", 32, 100, "model.input_width is 100, but backbone FAN_tiny_2X needs a multiple of 8"),
        ("FAN_tiny_2X", 30, 96, "set model.input_height=32, for example"),
    ],
)
def test_an_input_size_that_cannot_work_is_one_sentence(backbone: str, height: int, width: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_recognizer(
            ModelSpec(backbone=backbone, input_height=height, input_width=width, feature_channel=32), 11, 4
        )


def test_a_width_that_cannot_work_later_is_one_sentence(build: Build) -> None:
    with pytest.raises(ConfigError, match="needs at least 8"):
        build(backbone="ResNet", feature_channel=32).time_steps(32, 4)


def test_an_unknown_backbone_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown model.backbone 'ResNet3X' \(did you mean 'ResNet2X'\?\)"):
        build_recognizer(ModelSpec(backbone="ResNet3X"), 11, 4)


@pytest.mark.parametrize("num_fiducial", [3, 21, 2, 0])
def test_a_spline_of_odd_points_is_refused_when_built_too(num_fiducial: int) -> None:
    spec = ModelSpec(TPS=True, backbone="Tiny").model_copy(update={"num_fiducial": num_fiducial})
    with pytest.raises(ConfigError, match="num_fiducial must be even and at least 4"):
        build_recognizer(spec, 11, 4)


@pytest.mark.parametrize("prediction", ["CTC", "Attn", "Slots"])
def test_weights_go_through_safetensors_and_read_the_same(build: Build, prediction: str, tmp_path: Path) -> None:
    model = build(backbone="Tiny", prediction=prediction, TPS=True).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    torch.manual_seed(5)
    other = build_recognizer(model.spec, 11, 4).eval()
    images = torch.rand(2, 1, 32, 100)
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"), strict=True)
    assert torch.equal(model(images), other(images))


def load_captchas(folder: Path, number: int) -> tuple[torch.Tensor, list[str]]:
    rows = [line.split("\t") for line in (folder / "labels.tsv").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row[0].endswith(".png")][::100][:number]
    images = [cv2.resize(cv2.imread(str(folder / row[0]), cv2.IMREAD_GRAYSCALE), (96, 32)) for row in rows]
    return torch.from_numpy(np.stack(images)).float()[:, None] / 127.5 - 1, [row[1] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("prediction", ["CTC", "Slots"])
def test_tiny_learns_eight_captchas_by_heart(build: Build, captchas: Path, prediction: str) -> None:
    images, texts = load_captchas(captchas, 8)
    ids = torch.tensor([[int(character) + 1 for character in text] for text in texts])
    lengths = torch.full((8,), 4)
    model = build(backbone="Tiny", sequence="none", prediction=prediction, input_width=96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(80):
        loss = model.loss(model(images), (ids, lengths))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    read, _ = model.eval().read(images)
    if prediction == "CTC":
        runs = [torch.unique_consecutive(row) for row in read]
        answers = [row[row > 0].tolist() for row in runs]
    else:
        answers = read.tolist()
    assert answers == ids.tolist()
