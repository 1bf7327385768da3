"""The precision of an engine, written into its graph; for int8 with ranges that are measured or come from a cache.

TensorRT 11 and TensorRT for RTX take the precision of every layer from the ONNX file: their flags FP16 and INT8 and
their calibrators are gone. TensorRT 10 can work so too ("strongly typed"). So there is one way here for all of them:
the graph that TensorRT is given says what each layer computes in, and ONNX Runtime can read with the same graph.

The calibration cache is JSON; it names the ONNX file by its SHA-256, so that ranges of another reader are never taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from inkmill.config.spec import Spec
from inkmill.data.jobs.sample import SampleSet
from inkmill.data.pipeline.resize import Resize
from inkmill.deploy.export.precision import to_half
from inkmill.deploy.quantize.layers import Ranges, find_layers, measure_ranges, modules_of, quantised
from inkmill.deploy.samples import calibration_samples
from inkmill.deploy.tensorrt.graph import EngineGraph, Precision
from inkmill.errors import ConfigError
from inkmill.files import explain, write_json_atomic
from inkmill.registry import suggest

FORMAT = "inkmill-ranges-1"
MAX_CACHE = 64 << 20
"""Bytes of a cache; one of 1,000 layers has 0.1 MiB."""

_KEY = "gen_trt_engine.tensorrt.layers_precision"

Say = Callable[[str], None]


def refuse_mismatch(graph: EngineGraph, wanted: Precision, pairs: Sequence[str]) -> None:
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


def with_precision(graph: EngineGraph, wanted: Precision, pairs: Sequence[str], ranges: Ranges | None) -> Any:
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


def find_ranges(graph: EngineGraph, spec: Spec, say: Say) -> Ranges:
    """Return the ranges of a reader: of the calibration cache, where it is of this reader, else measured.

    What was measured is written to the cache, where the spec names one; an outdated one is replaced.

    Args:
        graph: the ONNX file, in fp32.
        spec: its `gen_trt_engine.tensorrt.calibration` and training set.
        say: takes a line about where the ranges come from.

    Raises:
        ConfigError: there are neither images nor a cache, or the file named as the cache is something else.
        DataError: a set is missing, or none of its images can be decoded.
    """
    name = spec.gen_trt_engine.tensorrt.calibration.cal_cache_file
    cache = Path(name) if name else None
    if cache is not None and cache.exists():
        ranges = _read_cache(cache, graph)
        if ranges is not None:
            say(f"ranges of {cache}")
            return ranges
        say(f"{cache} is of another ONNX file: ranges are measured again")
    samples = engine_calibration(spec, graph.reader.resize)
    ranges = measure_ranges(graph.model, find_layers(graph.model), samples)
    say(f"ranges measured on {samples.counted()}")
    if cache is not None:
        facts = {"onnx_sha256": graph.sha256, "pictures": len(samples.images), "of": samples.origin}
        write_json_atomic(cache, {"format": FORMAT, **facts, "ranges": ranges})
    return ranges


def engine_calibration(spec: Spec, resize: Resize) -> SampleSet:
    """Return `cal_batch_size` x `cal_batches` samples to calibrate on; see `calibration_samples` for where they are."""
    settings = spec.gen_trt_engine.tensorrt.calibration
    return calibration_samples(spec, resize, settings.cal_batch_size * settings.cal_batches, settings.cal_image_dir)


def _read_cache(path: Path, graph: EngineGraph) -> Ranges | None:
    """Return the ranges of a cache, None where it is of another ONNX file."""
    try:
        size = path.stat().st_size
        content = json.loads(path.read_bytes()) if size <= MAX_CACHE else {}
        if content["format"] != FORMAT:
            raise KeyError
        if content["onnx_sha256"] != graph.sha256:
            return None
        ranges = {str(name): (float(low), float(high)) for name, (low, high) in content["ranges"].items()}
    except OSError as error:
        raise ConfigError(f"cal_cache_file={path}: cannot be read ({explain(error)})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"cal_cache_file={path}: not a calibration cache of inkmill (TensorRT's own caches cannot be used); "
            "give another name"
        ) from error
    needed = {name for layer in find_layers(graph.model) for name in layer.tensors}
    if not needed <= ranges.keys() or not all(-np.inf < low <= high < np.inf for low, high in ranges.values()):
        raise ConfigError(f"cal_cache_file={path}: damaged; remove it, and ranges are measured again")
    return ranges
