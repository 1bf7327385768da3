from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from inkmill.config.model import ModelSpec
from inkmill.config.tasks import TensorRTSpec
from inkmill.deploy.export.graph import record
from inkmill.deploy.quantize.layers import find_layers, quantised
from inkmill.deploy.tensorrt.graph import SUPPORTED, EngineGraph, open_graph, refuse_unsupported, shapes
from inkmill.deploy.tensorrt.library import Library
from inkmill.errors import ConfigError, ModelFileError
from inkmill.nn.backbones import BACKBONES
from inkmill.nn.backbones.fan import FANTiny2X
from inkmill.tasks.recognition.decoder import BEST
from inkmill.tasks.recognition.model import build_recognizer


def changed(path: Path, place: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    """Write a copy of an ONNX file, changed, without the seal that it breaks."""
    model = onnx.load(path)
    change(model)
    kept = [entry for entry in model.metadata_props if entry.key != "inkmill.sha256"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, place)
    return place


def test_the_shapes_are_the_batches_of_the_spec_and_every_width_that_a_fit_makes(fresh: Callable[..., Path]) -> None:
    fixed = open_graph(fresh(), None)
    assert fixed.precision == "fp32"
    found = shapes(fixed, TensorRTSpec(min_batch_size=2, max_batch_size=16))
    assert (found.name, found.least, found.best, found.most) == (
        "input",
        (2, 1, 32, 64),
        (16, 1, 32, 64),
        (16, 1, 32, 64),
    )
    free = open_graph(fresh("model.input_resize=height", "model.input_width=200"), None)
    found = shapes(free, TensorRTSpec(opt_batch_size=8))
    assert (found.least, found.best, found.most) == ((1, 1, 32, 32), (8, 1, 32, 96), (32, 1, 32, 200))
    with pytest.raises(ConfigError, match=r"min_batch_size=4, opt_batch_size=2, max_batch_size=8; expected min <= opt"):
        shapes(fixed, TensorRTSpec(min_batch_size=4, opt_batch_size=2, max_batch_size=8))


def test_what_cannot_become_an_engine_is_refused_without_tensorrt(fresh: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such model file"):
        open_graph(tmp_path / "missing.onnx", None)

    def fix_batch(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4

    with pytest.raises(ConfigError, match="its batch is fixed"):
        open_graph(changed(fresh(), tmp_path / "fixed.onnx", fix_batch), None)

    def whiten(model: onnx.ModelProto) -> None:
        relu = next(node for node in model.graph.node if node.op_type == "Relu")
        relu.op_type = "MeanVarianceNormalization"

    open_graph(changed(fresh(), tmp_path / "whitened.onnx", whiten), None)  # another operator, which TensorRT has
    strange = onnx.load(fresh())
    strange.graph.node[0].op_type, strange.graph.node[1].domain = "DeformConv", "com.acme"
    with pytest.raises(ConfigError, match=r"x\.onnx: its graph needs DeformConv, com\.acme\.Relu, which TensorRT does"):
        refuse_unsupported(strange, "x.onnx")


def test_a_file_that_is_quantised_for_cpus_is_told_from_one_for_tensorrt(
    fresh: Callable[..., Path], tmp_path: Path
) -> None:
    def quantise(symmetric: bool) -> EngineGraph:
        path = tmp_path / f"{symmetric}.onnx"

        def change(model: onnx.ModelProto) -> None:
            inferred = onnx.shape_inference.infer_shapes(model)
            layers = find_layers(inferred)
            ranges = {name: (-2.0, 2.0) for layer in layers for name in layer.tensors}
            model.graph.CopyFrom(quantised(inferred, layers, ranges, symmetric=symmetric).graph)

        return open_graph(changed(fresh(), path, change), None)

    assert quantise(True).precision == "int8"
    with pytest.raises(ConfigError, match=r"quantised for CPUs .* give the float file"):
        quantise(False)


@pytest.mark.slow
def test_paddles_outputs_and_half_precision_are_told(fresh: Callable[..., Path]) -> None:
    free = ["model.input_resize=height", "model.input_width=200"]
    with pytest.raises(ConfigError, match=r"export it with export\.profile=default"):
        open_graph(fresh(*free, "export.profile=paddle"), None)
    assert open_graph(fresh("export.precision=fp16"), None).precision == "fp16"


PARTS = [(name, "CTC", False) for name in BACKBONES.names()]
PARTS += [("Tiny", head, straightened) for head in ("CTC", "Attn", "Slots") for straightened in (False, True)][1:]
"""Every backbone, and every head with TPS and without: a graph is one after the other, whichever they are."""


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "head", "straightened"), PARTS)
def test_every_reader_is_made_of_operators_that_tensorrt_has(backbone: str, head: str, straightened: bool) -> None:
    sizes = {"input_height": 32, "input_width": 64, "hidden_size": 8, "feature_channel": 16, "sequence": "BiLSTM"}
    resize = "stretch" if straightened else "height"
    spec = ModelSpec.model_validate(
        {"backbone": backbone, "prediction": head, "TPS": straightened, "input_resize": resize, **sizes}
    )
    model = build_recognizer(spec, 13, 3).eval()
    if isinstance(model.backbone, FANTiny2X):  # its eight blocks are equal, and the exporter takes seconds for each
        model.backbone.blocks = model.backbone.blocks[:1]
    recorded = record(model, BEST)
    refuse_unsupported(recorded, backbone)
    used = {node.op_type for node in recorded.graph.node}
    assert used >= ({"LSTM", "ArgMax"} | ({"GridSample"} if straightened else set()))
    assert not any(attribute.HasField("g") for node in recorded.graph.node for attribute in node.attribute)


def test_a_parser_knows_every_operator_of_the_table(library: Library) -> None:
    trt = library.module
    logger = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(logger).create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert [name for name in sorted(SUPPORTED) if not parser.supports_operator(name)] == []
    assert not parser.supports_operator("DeformConv")
