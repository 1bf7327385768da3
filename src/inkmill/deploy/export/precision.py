"""The arithmetics of an exported graph besides fp32: int8 as Q/DQ nodes, and fp16 with casts around what must not be.

**int8.** A model that simulates int8 (nn/fake_int8.py) becomes a graph with QuantizeLinear and DequantizeLinear nodes
at the same places, with the same scales. Weights lie in it as int8, with a scale for each output channel; biases stay
in float and zero points are 0, so that TensorRT and ONNX Runtime both take it. A convolution that a ReLU follows is
written as convolution, Q/DQ, ReLU, and the next layer's Q/DQ with the same scale. It is the same number as with the
ReLU first, and ONNX Runtime fuses only this: the other way round it leaves the convolution in float as long as zero
points are 0.

**fp16.** Any fp32 graph is rewritten, so an export in fp16 and an FP16 engine are made in one way. In fp32 stay the
straightener, whose positions need it, everything after the last layer with weights, which makes probabilities of
scores, nodes that the caller names, and those that fp16 is not defined for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from copy import deepcopy
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.onnx.ops import symbolic

from inkmill.nn.fake_int8 import HIGHEST, LOWEST, FakeInt8Conv2d, FakeInt8Layer, FakeInt8Linear

Model = TypeVar("Model", bound=nn.Module)

_WITH_WEIGHTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU")
_FP32_ONLY = ("Resize", "Range")
"""Their scales and steps are not numbers of an image."""


class _QuantizeDequantize(nn.Module):
    """QuantizeLinear and DequantizeLinear of activations."""

    scale: Tensor
    zero: Tensor

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.register_buffer("zero", torch.zeros((), dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        steps = symbolic("QuantizeLinear", (x, self.scale, self.zero), dtype=torch.int8, shape=x.shape)
        return symbolic("DequantizeLinear", (steps, self.scale, self.zero), dtype=torch.float32, shape=x.shape)


class _Weight(nn.Module):
    """DequantizeLinear of int8 weights whose output channels are in dimension `axis`."""

    steps: Tensor
    scale: Tensor
    zero: Tensor

    def __init__(self, layer: FakeInt8Layer, axis: int) -> None:
        super().__init__()
        scale = layer.weight_scale()
        steps = (layer.rounded_weight().detach() / scale).round().to(torch.int8)
        self.axis = axis
        self.register_buffer("steps", steps.movedim(0, axis).contiguous())
        self.register_buffer("scale", scale.flatten())
        self.register_buffer("zero", torch.zeros(len(scale), dtype=torch.int8))

    def forward(self) -> Tensor:
        given = (self.steps, self.scale, self.zero)
        shape = self.steps.shape
        return symbolic("DequantizeLinear", given, {"axis": self.axis}, dtype=torch.float32, shape=shape)


class _Conv2d(nn.Module):
    bias: Tensor | None

    def __init__(self, layer: FakeInt8Conv2d, scale: float) -> None:
        super().__init__()
        self.reads, self.weight = _QuantizeDequantize(scale), _Weight(layer, 0)
        self.gives = _QuantizeDequantize(float(layer.gives.scale()))
        bias = layer.rounded_bias()
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.convolve = layer._conv_forward

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gives(self.convolve(self.reads(x), self.weight(), self.bias))
        return out


class _Linear(nn.Module):
    def __init__(self, layer: FakeInt8Linear, scale: float) -> None:
        super().__init__()
        self.reads, self.weight = _QuantizeDequantize(scale), _Weight(layer, 1)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.reads(x) @ self.weight()
        return out if self.bias is None else out + self.bias


def with_qdq(model: Model) -> Model:
    """Return a copy whose layers in fake int8 are Q/DQ nodes for the exporter; it cannot be run by torch."""
    written = deepcopy(model)
    layers = [(name, part) for name, part in written.named_modules() if isinstance(part, FakeInt8Layer)]
    scales = _distinct([float(layer.input_range.scale()) for _, layer in layers])
    for (name, layer), scale in zip(layers, scales, strict=True):
        new = (
            _Conv2d(layer, scale) if isinstance(layer, FakeInt8Conv2d) else _Linear(cast(FakeInt8Linear, layer), scale)
        )
        written.set_submodule(name, new)
    return written


def _distinct(scales: list[float]) -> Iterator[float]:
    """Yield the scales, equal ones some last bits larger.

    Two layers that read one tensor would have equal Q nodes, which ONNX Runtime makes one with two DQ nodes. That one
    it does not turn into uint8, the only kind that is fast on x86, and both layers would be left in float.
    """
    used: set[float] = set()
    for scale in scales:
        while scale in used:
            scale = float(np.nextafter(np.float32(scale), np.float32(math.inf)))
        used.add(scale)
        yield scale


def share_through_clip(model: Any) -> None:
    """Let a tensor that a convolution gives and several nodes read be read through one Clip, in place.

    GELU and SiLU, written out, read their input twice. ONNX Runtime then makes two DequantizeLinear nodes behind one
    QuantizeLinear, which it does not turn into uint8 (see `_distinct`), and leaves the convolution in float. The Clip
    has the ends of the range, so it changes no number.

    Args:
        model: an onnx.ModelProto of `with_qdq`.
    """
    import onnx

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = Counter(name for node in model.graph.node for name in node.input)
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        name = node.output[0]
        if node.op_type != "DequantizeLinear" or node.input[0] in constants or readers[name] < 2:
            continue
        node.output[0] = f"{name}_unclipped"
        scale = onnx.numpy_helper.to_array(constants[node.input[1]])
        ends = [onnx.numpy_helper.from_array(scale * np.float32(end), f"{name}_{end}") for end in (LOWEST, HIGHEST)]
        model.graph.initializer.extend(ends)
        nodes.append(
            onnx.helper.make_node("Clip", [node.output[0], *(end.name for end in ends)], [name], f"{name}_clip")
        )
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def to_half(model: Any, in_float: Collection[str] = ()) -> Any:
    """Return a new ModelProto that works in fp16; its inputs and outputs keep their types.

    Args:
        model: an onnx.ModelProto in fp32 with one flat graph; stays as it is.
        in_float: names of nodes that stay in fp32.
    """
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(onnx.shape_inference.infer_shapes(model, data_prop=True))
    _Halving(made.graph, _staying(made.graph) | set(in_float)).run()
    del made.graph.value_info[:]  # they hold the old types
    return made


def _staying(graph: Any) -> set[str]:
    """Return the names of nodes that stay in fp32 whatever the caller wants."""
    weights = {tensor.name for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    before = [node for node in graph.node if node.op_type == "GridSample"]
    staying = {node.name for node in _upstream(before, makers)}
    layers = [node for node in graph.node if node.op_type in _WITH_WEIGHTS and weights & set(node.input)]
    leading = {node.name for node in _upstream(layers, makers)}
    after = {node.name for node in graph.node if node.name not in leading}
    # The outputs keep their type, also where a layer with weights gives them itself.
    last = {makers[output.name].name for output in graph.output if output.name in makers}
    return staying | after | last | {node.name for node in graph.node if node.op_type in _FP32_ONLY}


def _upstream(nodes: list[Any], makers: dict[str, Any]) -> list[Any]:
    """Return the nodes and all that their inputs come from."""
    found: dict[str, Any] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found[node.name] = node
            waiting += [makers[name] for name in node.input if name in makers]
    return list(found.values())


class _Halving:
    """One walk over the nodes in their order, in which each takes its inputs in its own precision."""

    def __init__(self, graph: Any, staying: set[str]) -> None:
        from onnx import TensorProto

        self._graph, self._staying = graph, staying
        self._float, self._half = TensorProto.FLOAT, TensorProto.FLOAT16
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        typed = [*graph.input, *graph.value_info, *graph.output]
        self._floats = {one.name for one in typed if one.type.tensor_type.elem_type == self._float}
        self._floats |= {name for name, tensor in self._weights.items() if tensor.data_type == self._float}
        self._halves: set[str] = set()
        self._cast: dict[tuple[str, bool], str] = {}
        self._nodes: list[Any] = []

    def run(self) -> None:
        # 1. Each node takes its inputs in its own precision.
        for node in list(self._graph.node):
            # A node that makes floats of other numbers (Cast, ConstantOfShape) says in an attribute which it makes.
            half = node.name not in self._staying and any(name in self._floats for name in node.input)
            for place, name in enumerate(node.input):
                if name in self._floats and half != (name in self._halves):
                    node.input[place] = self._other(name, half)
            if half:
                self._halves |= self._floats & set(node.output)
            self._nodes.append(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)

        # 2. fp32 weights that only fp16 nodes took are not needed any more.
        used = {name for node in self._nodes for name in node.input}
        kept = [tensor for tensor in self._graph.initializer if tensor.name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)

    def _other(self, name: str, half: bool) -> str:
        """Return the name of a tensor in the other precision, which is made where it is first needed."""
        from onnx import helper

        if (name, half) not in self._cast:
            new = f"{name}_{'fp16' if half else 'fp32'}"
            self._cast[name, half] = new
            if name in self._weights:
                self._graph.initializer.append(_halved(self._weights[name], new))
            else:
                to = self._half if half else self._float
                self._nodes.append(helper.make_node("Cast", [name], [new], name=f"{new}_cast", to=to))
        return self._cast[name, half]


def _halved(tensor: Any, name: str) -> Any:
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor)
    largest = float(np.finfo(np.float16).max)
    # A mask of -1e9 must not become -inf, which a softmax over it alone turns into NaN; what is infinite stays so.
    bounded = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
    return numpy_helper.from_array(bounded.astype(np.float16), name)
