"""Which layers of an ONNX graph can compute in int8, what ranges their numbers have, and the graph that does it.

A layer is a convolution, matrix product or Gemm with weights of its own. ONNX Runtime's quantiser puts Q/DQ nodes
around each that is chosen: weights int8, one scale an output channel; activations uint8, one scale a tensor. Everything
else stays in float: LSTM, softmax, norms, products inside attention, and weights that several nodes share, which are
the steps of an unrolled attention head.

Ranges are measured here, in memory: ONNX Runtime's own calibrators write the graph to disk, which must not happen to an
encrypted reader.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from inkmill.config.quantize import QuantizeSpec
from inkmill.data.jobs.sample import SampleSet
from inkmill.data.pipeline.scale import to_network
from inkmill.deploy.export.graph import NAME_SCOPES
from inkmill.errors import ConfigError, MissingExtraError

Ranges = dict[str, tuple[float, float]]
"""Lowest and highest number of each tensor, by its name in the graph."""

BATCH = 16
_KINDS = {"Conv": "Conv2d", "MatMul": "Linear", "Gemm": "Linear"}


@dataclass(frozen=True)
class Layer:
    """A node with weights.

    Attributes:
        name: of the module in the torch model where the graph still says so, else the node's.
        node: the node's own name.
        kind: Conv2d or Linear.
        tensors: what goes in and what comes out.
    """

    name: str
    node: str
    kind: str
    tensors: tuple[str, str]


def load_graph(content: bytes, where: str, outputs: Collection[str]) -> Any:
    """Return the ModelProto of a plain ONNX file, with the shape of every tensor.

    Args:
        content: the file.
        where: its path, for errors.
        outputs: what a plain export of its task gives.

    Raises:
        ConfigError: it is quantised already, or it is not the plain export that this begins with.
        MissingExtraError: the package onnx is not installed.
    """
    try:
        import onnx
        import onnxruntime.quantization  # noqa: F401 - a missing package shows now, not after calibration
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "onnx", "train", "quantize") from error
    model = onnx.load_model_from_string(content)
    if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        raise ConfigError(f"{where} is quantised already: give the reader that it was made from")
    if not set(outputs) <= {output.name for output in model.graph.output} or _is_half(model):
        named = " and ".join(outputs)
        raise ConfigError(f"{where}: quantize needs a plain export, in fp32 and with the outputs {named}; export it so")
    del model.metadata_props[:]  # the seal is of other bytes, and a new header is written
    return onnx.shape_inference.infer_shapes(model)


def _is_half(model: Any) -> bool:
    import onnx

    return any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)


def find_layers(model: Any) -> list[Layer]:
    """Return all layers that could be int8, in the order of the graph."""
    weights = {tensor.name for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in _KINDS and node.input[1] in weights]
    users = Counter(node.input[1] for node in nodes)
    return [
        Layer(_name(node), node.name, _KINDS[node.op_type], (node.input[0], node.output[0]))
        for node in nodes
        if users[node.input[1]] == 1
    ]


def _name(node: Any) -> str:
    """Return the torch module's name: that of the weights, or where the exporter has transposed them, the module's."""
    weights: str = node.input[1]
    if weights.endswith(".weight"):
        return weights.removeprefix("model.").removesuffix(".weight")
    modules = modules_of(node)
    return modules[-1] if modules else str(node.name)


def modules_of(node: Any) -> list[str]:
    """Return the names of the torch modules that a node is in, the innermost last.

    They are those whose names begin with `model.` in the list that torch's exporter leaves with each node.
    """
    scopes = next((entry.value for entry in node.metadata_props if entry.key == NAME_SCOPES), "")
    return re.findall(r"'model\.([^']*)'", scopes)


def asked_for(layers: Sequence[Layer], settings: QuantizeSpec) -> list[Layer]:
    """Return the layers that `quantize.layers` and `quantize.skip_names` leave, in order.

    Raises:
        ConfigError: a pattern that fits no layer, or no layer is left.
    """
    patterns = [*(one.module_name for one in settings.layers), *settings.skip_names]
    for pattern in patterns:
        if not any(_fits(layer, pattern) for layer in layers):
            names = ", ".join(layer.name for layer in layers[:4])
            raise ConfigError(f"quantize: no layer is called {pattern!r}; the layers are {names} and so on")
    chosen = [layer for layer in layers if _wanted(layer, settings)]
    if not chosen:
        raise ConfigError("quantize: no layer is left to quantise; look at quantize.layers and quantize.skip_names")
    return chosen


def _wanted(layer: Layer, settings: QuantizeSpec) -> bool:
    if any(_fits(layer, pattern) for pattern in settings.skip_names):
        return False
    fitting = [one for one in settings.layers if _fits(layer, one.module_name)]
    return fitting[-1].weights.dtype == "int8" if fitting else not settings.layers


def _fits(layer: Layer, pattern: str) -> bool:
    return pattern in (layer.kind, layer.node) or fnmatchcase(layer.name, pattern)


def measure_ranges(model: Any, layers: Sequence[Layer], samples: SampleSet) -> Ranges:
    """Return the range of what goes into and comes out of every layer while the graph reads samples.

    Args:
        model: the ModelProto.
        layers: where to measure.
        samples: resized images, of one or several widths.
    """
    import onnx
    import onnxruntime

    # 1. A copy of the graph whose outputs are the tensors around the layers.
    pixels = model.graph.input[0].name
    names = sorted({name for layer in layers for name in layer.tensors} - {pixels})
    watched = deepcopy(model)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])

    # 2. The lowest and highest number of each, over all samples.
    lowest, highest = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for images in samples.batches(BATCH):
        found = session.run(names, {pixels: to_network(images)})
        lowest = np.minimum(lowest, [tensor.min() for tensor in found])
        highest = np.maximum(highest, [tensor.max() for tensor in found])
    ranges = dict(zip(names, zip(lowest.tolist(), highest.tolist(), strict=True), strict=True))
    ranges[pixels] = (-1.0, 1.0)  # what pixels can be, whether or not these samples have them
    return ranges


def quantised(model: Any, layers: Collection[Layer], ranges: Ranges, *, symmetric: bool = False) -> Any:
    """Return a new ModelProto in which `layers` compute in int8; the one given stays as it is.

    Args:
        model: the ModelProto.
        layers: which.
        ranges: of what goes into and comes out of them.
        symmetric: activations int8 around 0 and biases in float, all that TensorRT takes, in place of uint8 and int32.
    """
    from onnxruntime.quantization import CalibrationMethod, QDQQuantizer, QuantType
    from onnxruntime.quantization.calibrate import TensorsData

    measured = {name: tuple(np.asarray(end, np.float32) for end in ends) for name, ends in ranges.items()}
    maker = QDQQuantizer(
        deepcopy(model),
        True,  # per channel
        False,  # all 8 bits of the weights
        QuantType.QInt8,
        QuantType.QInt8 if symmetric else QuantType.QUInt8,
        TensorsData(CalibrationMethod.MinMax, measured),
        [layer.node for layer in layers],
        [],
        list(_KINDS),
        # What a matrix product gives stays in float: ONNX Runtime then makes product, scale and bias one kernel.
        {"ActivationSymmetric": True, "QuantizeBias": False}
        if symmetric
        else {"OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]},
    )
    with contextlib.redirect_stdout(io.StringIO()):  # only cli/ prints
        maker.quantize_model()
    maker.model.topological_sort()  # as the ONNX format asks for; onnxruntime reads it either way
    made = maker.model.model
    del made.metadata_props[:]
    return made
