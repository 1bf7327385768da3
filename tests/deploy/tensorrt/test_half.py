from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from inkmill.deploy.export.precision import to_half


def types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the type of every tensor."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    told = [*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output]
    found = {one.name: one.type.tensor_type.elem_type for one in told}
    return found | {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def run(model: onnx.ModelProto, images: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["MatmulTransposeFusion"],
    )
    found: list[np.ndarray] = session.run(["output_id", "output_prob"], {"input": images})
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        ["model.TPS=true"],
        ["model.sequence=BiLSTM", "model.input_resize=height", "model.input_width=200"],
        ["model.prediction=Attn", "model.sequence=BiLSTM", "model.hidden_size=16"],
    ],
    ids=["TPS", "free", "Attn"],
)
def test_half_precision_reads_nearly_the_same(kind: list[str], fresh: Callable[..., Path]) -> None:
    model = onnx.load(fresh(*kind))
    before = model.SerializeToString(deterministic=True)
    half = to_half(model)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(half, full_check=True)
    images = np.random.default_rng(0).uniform(-1, 1, (5, 1, 32, 64)).astype(np.float32)
    ids, probabilities = run(model, images)
    other_ids, other_probabilities = run(half, images)
    assert (ids == other_ids).mean() > 0.9
    assert np.abs(probabilities - other_probabilities).max() < 0.1
    assert np.abs(probabilities - other_probabilities).max() > 0  # it was in fp16 indeed
    assert len(half.SerializeToString()) < 0.9 * len(before)


@pytest.mark.slow
def test_positions_and_probabilities_stay_in_fp32(fresh: Callable[..., Path]) -> None:
    half = to_half(onnx.load(fresh("model.TPS=true")))
    found = types(half)
    first = {kind: next(node for node in half.graph.node if node.op_type == kind) for kind in ("GridSample", "Softmax")}
    positions = first["GridSample"]
    assert [found[name] for name in (*positions.input, *positions.output)] == [TensorProto.FLOAT] * 3
    assert (
        found[next(node for node in reversed(half.graph.node) if node.op_type == "Softmax").input[0]]
        == TensorProto.FLOAT
    )
    layers = [node for node in half.graph.node if node.op_type == "Conv"]
    rectifier = [node for node in layers if "rectifier" in node.input[1]]
    assert {found[node.output[0]] for node in rectifier} == {TensorProto.FLOAT}
    assert {found[node.output[0]] for node in layers if node not in rectifier} == {TensorProto.FLOAT16}
    assert len(rectifier) == 4
    assert [found[name] for name in ("input", "output_id", "output_prob")] == [1, TensorProto.INT32, 1]


def test_a_named_node_stays_in_fp32_with_casts_around_it(fresh: Callable[..., Path]) -> None:
    model = onnx.load(fresh())
    name = [node.name for node in model.graph.node if node.op_type == "Conv"][3]
    plain, kept = to_half(model), to_half(model, {name})
    conv = next(node for node in kept.graph.node if node.name == name)
    assert types(kept)[conv.output[0]] == TensorProto.FLOAT
    assert sum(node.op_type == "Cast" for node in kept.graph.node) > sum(
        node.op_type == "Cast" for node in plain.graph.node
    )
    onnx.checker.check_model(kept, full_check=True)


def test_a_mask_stays_finite() -> None:
    from onnx import helper

    mask = numpy_helper.from_array(np.array([0.0, -1e9, -np.inf], np.float32), "mask")
    weights = numpy_helper.from_array(np.eye(3, dtype=np.float32), "weights")
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["masked"], name="add"),
        helper.make_node("MatMul", ["masked", "weights"], ["y"], name="matmul"),
        helper.make_node("Identity", ["y"], ["z"], name="last"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("x", "z")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [mask, weights])
    half = to_half(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    made = {tensor.name: numpy_helper.to_array(tensor) for tensor in half.graph.initializer}
    assert made.keys() == {"mask_fp16", "weights_fp16"}  # what nobody reads any more is gone
    assert made["mask_fp16"].tolist() == [0.0, -65504.0, -np.inf]
