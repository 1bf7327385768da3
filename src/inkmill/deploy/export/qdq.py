"""A recogniser in fake int8 as the exporter records it: QuantizeLinear and DequantizeLinear around every such layer.

Weights lie in the file as int8, behind a DequantizeLinear with a scale for each output channel; biases stay in float,
for TensorRT takes no other. Zero points are 0, so that TensorRT and ONNX Runtime both read it.

A convolution that a ReLU follows is written as convolution, Q/DQ, ReLU, and the next layer's Q/DQ with the same scale.
It is the same number as with the ReLU first, and ONNX Runtime fuses only this: the other way round it leaves the
convolution in float as long as zero points are 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.onnx.ops import symbolic

from inkmill.nn.fake_int8 import HIGHEST, LOWEST, FakeInt8Conv2d, FakeInt8Layer, FakeInt8Linear
from inkmill.tasks.recognition.model import Recognizer


class _Rounding(nn.Module):
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
        self.reads, self.weight = _Rounding(scale), _Weight(layer, 0)
        self.gives = _Rounding(float(layer.gives.scale()))
        bias = layer.rounded_bias()
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.convolve = layer._conv_forward

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gives(self.convolve(self.reads(x), self.weight(), self.bias))
        return out


class _Linear(nn.Module):
    def __init__(self, layer: FakeInt8Linear, scale: float) -> None:
        super().__init__()
        self.reads, self.weight = _Rounding(scale), _Weight(layer, 1)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.reads(x) @ self.weight()
        return out if self.bias is None else out + self.bias


def with_qdq(model: Recognizer) -> Recognizer:
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
