from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, numpy_helper

from inkmill.deploy.quantize.layers import find_layers
from inkmill.deploy.tensorrt.graph import open_graph
from inkmill.deploy.tensorrt.precision import left_in_fp32, refuse_mismatch, with_precision
from inkmill.errors import ConfigError


def test_a_layer_is_named_by_its_node_or_its_weights_or_a_pattern(fresh: Callable[..., Path]) -> None:
    model = onnx.load(fresh())
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    weights = conv.input[1].removeprefix("model.").removesuffix(".weight")
    assert left_in_fp32(model, [f"{conv.name}:fp32"]) == {conv.name}
    assert conv.name in left_in_fp32(model, [f"{weights}:FP32"])
    convolutions = {node.name for node in model.graph.node if node.op_type == "Conv"}
    assert left_in_fp32(model, ["node_Conv_*:fp32"]) == convolutions
    linear = {node.name for node in model.graph.node if node.op_type == "MatMul"}
    assert len(left_in_fp32(model, ["head.*:float32"]) & linear) == 1
    assert left_in_fp32(model, ["head:fp32"]) >= left_in_fp32(model, ["head.*:fp32"])
    assert left_in_fp32(model, []) == set()


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("head.clases:fp32", r"no layer is called 'head\.clases' \(did you mean 'head\.classes'\?\); `head`"),
        ("head.classes:fp16", r"'head\.classes:fp16'; expected LAYER:fp32"),
        ("head.classes", r"'head\.classes'; expected LAYER:fp32"),
    ],
)
def test_a_wrong_pair_is_a_sentence_with_the_names(pair: str, said: str, fresh: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=said):
        left_in_fp32(onnx.load(fresh()), [pair])


def test_a_files_own_precision_must_be_the_engines(fresh: Callable[..., Path]) -> None:
    single, half = open_graph(fresh(), None), open_graph(fresh("export.precision=fp16"), None)
    for graph, wanted in ((single, "fp32"), (single, "fp16"), (single, "int8"), (half, "fp16")):
        refuse_mismatch(graph, wanted, [])  # type: ignore[arg-type]
    assert with_precision(half, "fp16", [], None) is half.model
    with pytest.raises(ConfigError, match=r"computes in fp16, and data_type=INT8 is asked for: set data_type=FP16, or"):
        refuse_mismatch(half, "int8", [])
    for graph, wanted in ((single, "fp32"), (half, "fp16")):
        with pytest.raises(ConfigError, match="stays as it is in this engine"):
            refuse_mismatch(graph, wanted, ["head.classes:fp32"])  # type: ignore[arg-type]


def test_int8_is_around_zero_with_biases_in_float_and_leaves_named_layers(fresh: Callable[..., Path]) -> None:
    graph = open_graph(fresh(), None)
    layers = find_layers(graph.model)
    ranges = {name: (-0.5, 3.0) for layer in layers for name in layer.tensors}
    made = with_precision(graph, "int8", ["head.*:fp32"], ranges)
    onnx.checker.check_model(made)
    values = {tensor.name: tensor for tensor in made.graph.initializer}
    rounding = [node for node in made.graph.node if node.op_type == "QuantizeLinear"]
    zeros = [values[node.input[2]] for node in rounding]
    assert {zero.data_type for zero in zeros} == {TensorProto.INT8}
    assert not any(numpy_helper.to_array(zero).any() for zero in zeros)
    # onnxruntime's symmetric int8 has 127 or 127.5 steps a side
    scales = [float(numpy_helper.to_array(values[node.input[1]])) for node in rounding]
    assert scales == pytest.approx([3.0 / 127] * len(scales), rel=0.01)
    opened = [node.input[0] for node in made.graph.node if node.op_type == "DequantizeLinear"]
    assert {values[name].data_type for name in opened if name in values} == {TensorProto.INT8}  # weights, no biases
    head = layers[-1].node
    assert head in left_in_fp32(graph.model, ["head.*:fp32"])
    weights = {node.name: node.input[1] for node in made.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")}
    assert weights[head] in values
    assert not any(weights[layer.node] in values for layer in layers if layer.node != head)
    with pytest.raises(ConfigError, match="no layer is left for int8"):
        with_precision(graph, "int8", ["*:fp32"], ranges)
