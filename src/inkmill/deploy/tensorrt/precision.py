"""The precision of an engine, written into its graph.

TensorRT 11 and TensorRT for RTX take the precision of every layer from the ONNX file: their flags FP16 and INT8 and
their calibrators are gone. TensorRT 10 can work so too ("strongly typed"). So there is one way here for all of them:
the graph that TensorRT is given says what each layer computes in, and ONNX Runtime can read with the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from inkmill.deploy.quantize.graph import Ranges, find_layers, modules_of, quantised
from inkmill.deploy.tensorrt.graph import Graph, Precision
from inkmill.deploy.tensorrt.half import to_half
from inkmill.errors import ConfigError
from inkmill.registry import suggest

_KEY = "gen_trt_engine.tensorrt.layers_precision"


def refuse_mismatch(graph: Graph, wanted: Precision, pairs: Sequence[str]) -> None:
    """Raise ConfigError where the ONNX file has another precision of its own than the engine is to have."""
    if graph.precision not in ("fp32", wanted):
        raise ConfigError(
            f"{graph.where}: computes in {graph.precision}, and data_type={wanted.upper()} is asked for: "
            f"set data_type={graph.precision.upper()}, or give the file in fp32"
        )
    if pairs and (graph.precision != "fp32" or wanted == "fp32"):
        raise ConfigError(
            f"{_KEY}: {graph.where} stays as it is in this engine; the key is for FP16 or INT8 of fp32 files"
        )


def left_in_fp32(model: Any, pairs: Sequence[str]) -> set[str]:
    """Return the names of the nodes that `LAYER:fp32` pairs mean.

    LAYER is the name of a node, or of a part of the torch model with all that is in it (`head`, `backbone.mixing.mlp`),
    or a pattern of either.

    Raises:
        ConfigError: no such layer, or another precision.
    """
    names = {node.name: _names(node) for node in model.graph.node}
    found: set[str] = set()
    for pair in pairs:
        pattern, colon, precision = pair.rpartition(":")
        if not colon or precision.lower() not in ("fp32", "float32"):
            raise ConfigError(f"{_KEY}: {pair!r}; expected LAYER:fp32, for what is not to be in the engine's precision")
        fitting = {node for node, known in names.items() if any(fnmatchcase(name, pattern) for name in known)}
        if not fitting:
            known = sorted({name for several in names.values() for name in several})
            raise ConfigError(
                f"{_KEY}: no layer is called {pattern!r}{suggest(pattern, known)}; `head`, `backbone.*` and names of "
                f"nodes such as {model.graph.node[0].name} are known"
            )
        found |= fitting
    return found


def _names(node: Any) -> set[str]:
    """Return what a node is called: its name, the torch modules it is in, and the layers whose weights it takes."""
    weights = {name.rpartition(".")[0] for name in node.input}
    of_weights = {name.removeprefix("model.") for name in weights if name.startswith("model.")}
    return {node.name, *modules_of(node), *of_weights}


def with_precision(graph: Graph, wanted: Precision, pairs: Sequence[str], ranges: Ranges | None) -> Any:
    """Return the ModelProto that TensorRT is to compile; the file's own where it needs no change.

    Args:
        graph: the ONNX file.
        wanted: precision of the engine.
        pairs: what stays in fp32, see `left_in_fp32`.
        ranges: for int8 of an fp32 file: of what goes into and comes out of every layer.

    Raises:
        ConfigError: see `refuse_mismatch` and `left_in_fp32`; or no layer is left for int8.
    """
    import onnx

    refuse_mismatch(graph, wanted, pairs)
    if graph.precision == wanted:
        return graph.model
    staying = left_in_fp32(graph.model, pairs)
    if wanted == "fp16":
        return to_half(graph.model, staying)
    layers = [layer for layer in find_layers(graph.model) if layer.node not in staying]
    if not layers:
        raise ConfigError(f"{_KEY}: no layer is left for int8")
    return quantised(onnx.shape_inference.infer_shapes(graph.model), layers, ranges or {}, symmetric=True)
