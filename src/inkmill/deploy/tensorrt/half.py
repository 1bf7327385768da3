"""A reader's graph in half precision, with casts where a part must stay in fp32.

In fp32 stay what `export.precision=fp16` leaves there too: the straightener, whose positions need it, and everything
after the last layer with weights, which makes probabilities of scores. So do nodes that the caller names, and those
that fp16 is not defined for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

WITH_WEIGHTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU")
_FP32_ALONE = ("Resize", "Range")
"""Their scales and steps are no numbers of a picture."""


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
    del made.graph.value_info[:]  # they tell the old types
    return made


def _staying(graph: Any) -> set[str]:
    """Return the names of nodes that stay in fp32 whatever the caller wants."""
    weights = {tensor.name for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    before = [node for node in graph.node if node.op_type == "GridSample"]
    staying = {node.name for node in _upstream(before, makers)}
    layers = [node for node in graph.node if node.op_type in WITH_WEIGHTS and weights & set(node.input)]
    leading = {node.name for node in _upstream(layers, makers)}
    after = {node.name for node in graph.node if node.name not in leading}
    return staying | after | {node.name for node in graph.node if node.op_type in _FP32_ALONE}


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
        told = [*graph.input, *graph.value_info, *graph.output]
        self._floats = {one.name for one in told if one.type.tensor_type.elem_type == self._float}
        self._floats |= {name for name, tensor in self._weights.items() if tensor.data_type == self._float}
        self._halves: set[str] = set()
        self._cast: dict[tuple[str, bool], str] = {}
        self._nodes: list[Any] = []

    def run(self) -> None:
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
