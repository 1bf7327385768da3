from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

import inkmill
from inkmill.config.load import load_spec
from inkmill.deploy.export.graph import record
from inkmill.deploy.export.run import export
from inkmill.errors import ConfigError
from inkmill.modelfile.header import ModelHeader
from inkmill.nn.backbones.fan import FANTiny2X
from inkmill.nn.fake_int8 import measure
from inkmill.nn.simulate import layers_in_float, layers_in_int8
from inkmill.runtime.torch_reader import TorchReader
from inkmill.tasks.model import to_input
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.decoder import ALL, BEST
from inkmill.tasks.recognition.model import Recognizer, build_recognizer
from inkmill.tasks.recognition.task import Recognition
from inkmill.training.run import train

from ..conftest import TrainedReader

SMALL = ["model.backbone=Tiny", "model.sequence=none", "model.input_width=64", "dataset.max_label_length=4"]
pytestmark = pytest.mark.slow  # each test exports, and one trains

FLOAT = {"Conv", "FusedConv", "Gemm", "FusedGemm"}


@pytest.fixture(scope="module")
def trained(trained_reader: TrainedReader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader that reads some captchas, fine-tuned with simulated int8."""
    folder = tmp_path_factory.mktemp("qdq")
    keys = ["model.quantize=true", f"train.pretrained_model_path={trained_reader.model}", f"results_dir={folder}"]
    return train(load_spec(None, [*trained_reader.overrides, *keys, "train.num_epochs=1", "train.optim.lr=1e-3"])).model


@pytest.mark.usefixtures("exact_int8")
def test_the_file_reads_captchas_as_torch_does_within_int8(trained: Path, captchas: Path) -> None:
    keys = [f"export.checkpoint={trained}", f"evaluate.test={captchas}", f"results_dir={trained.parent}"]
    path = export(load_spec(None, keys))
    found = json.loads((trained.parent / "export" / "metrics.json").read_text("utf-8"))
    assert (found["precision"], found["crops"]) == ("int8", 300)
    assert found["string_parity"] >= found["required"]["string_parity"] == 0.99
    assert found["different_texts"] > 100
    assert path.stat().st_size < 0.5 * trained.stat().st_size
    assert inkmill.load(path, "cpu").header.provenance["made"][-1]["precision"] == "int8"
    spec = load_spec(None, [*keys, "export.precision=fp16"])
    with pytest.raises(ConfigError, match=r"was trained for int8: export it without export\.precision=fp16"):
        export(spec)


def simulated(captchas: Path, *overrides: str) -> Recognizer:
    """Return a recogniser with fresh weights that simulates int8, with ranges of captchas."""
    spec = load_spec(None, [*SMALL, *overrides, "model.quantize=true"])
    card = ModelHeader.of(Recognition(spec.model, Charset(tuple("0123456789")), 4))
    torch.manual_seed(0)
    model = build_recognizer(spec.model, card.open_task().codec.num_classes, 4).eval()
    shortened(model)
    resize = TorchReader(model, card).resize
    paths = sorted((captchas / "images").iterdir())[:16]
    pictures = [resize.apply(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)[..., None])[0] for path in paths]
    with torch.no_grad():
        measure(model, 1.0)
        model(to_input(torch.from_numpy(np.stack(pictures))))
        measure(model, None)
    return model


def shortened(model: Recognizer) -> None:
    """Leave one of FAN's eight equal blocks: the exporter takes seconds for each, and finds the same operators."""
    if isinstance(model.backbone, FANTiny2X):
        model.backbone.blocks = model.backbone.blocks[:1]


def recorded(model: Recognizer) -> Any:
    return record(model, BEST)


def test_the_paddle_profile_asks_torch_for_the_steps_of_a_free_width(captchas: Path) -> None:
    """A copy with Q/DQ nodes can only be recorded."""
    graph = record(simulated(captchas, "model.input_resize=height"), (ALL,), profile="paddle")
    assert "Loop" in {node.op_type for node in graph.graph.node}


def operators(graph: Any, folder: Path) -> Counter[str]:
    """Return the operators that ONNX Runtime runs, after its own fusions."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4  # it warns that the file is for this machine
    onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node)


def test_tensorrt_could_read_it(captchas: Path) -> None:
    """Symmetric int8 everywhere, a scale an output channel for weights, no DequantizeLinear of biases."""
    model = simulated(captchas)
    graph = recorded(model).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    rounding = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for node in rounding:
        assert constants[node.input[2]].dtype == np.int8
        assert not constants[node.input[2]].any()
    weights = [constants[node.input[0]] for node in rounding if node.input[0] in constants]
    assert len(weights) == len(layers_in_int8(model)) == 12
    for node in rounding:
        if node.input[0] in constants:
            steps, scale = constants[node.input[0]], constants[node.input[1]]
            axis = next(attribute.i for attribute in node.attribute if attribute.name == "axis")
            assert steps.dtype == np.int8
            assert steps.min() >= -127
            assert scale.shape == (steps.shape[axis],)
    assert sum(node.op_type == "QuantizeLinear" for node in rounding) == 19  # 12 read, 7 convolutions give


@pytest.mark.parametrize(
    "keys",
    [
        ["model.backbone=Tiny"],
        ["model.backbone=ResNet", "model.feature_channel=32", "model.sequence=BiLSTM", "model.hidden_size=16"],
        ["model.backbone=FAN_tiny_2X"],  # convolutions before GELU
        ["model.backbone=resnet18", "model.prediction=Slots"],  # two layers that read one tensor
    ],
    ids=lambda keys: keys[0].partition("=")[2],
)
def test_onnx_runtime_computes_every_layer_in_int8(keys: list[str], tmp_path: Path, captchas: Path) -> None:
    model = simulated(captchas, *keys)
    run = operators(recorded(model), tmp_path)
    layers = [model.get_submodule(name) for name in layers_in_int8(model)]
    convolutions = sum(isinstance(layer, torch.nn.Conv2d) for layer in layers)
    assert run["QLinearConv"] == convolutions
    assert run["MatMulIntegerToFloat"] + run["QLinearMatMul"] == len(layers) - convolutions
    assert sum(run[name] for name in FLOAT) <= (
        "backbone.position.mix" in layers_in_float(model)
    )  # often a constant by now


@pytest.mark.usefixtures("exact_int8")
def test_a_free_width_stays_free(captchas: Path) -> None:
    model = simulated(captchas, "model.input_resize=height", "model.input_width=160")
    session = onnxruntime.InferenceSession(recorded(model).SerializeToString(), providers=["CPUExecutionProvider"])
    torch.manual_seed(1)
    for width in (32, 96, 160):
        images = torch.rand(3, 1, 32, width) * 2 - 1
        probabilities = session.run(["output_prob"], {"input": images.numpy()})[0]
        with torch.no_grad():
            np.testing.assert_allclose(probabilities, model.read(images)[1].numpy(), atol=5e-3)
