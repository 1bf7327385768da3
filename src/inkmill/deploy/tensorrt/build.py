"""`engine`: a reader compiled by TensorRT for one kind of GPU.

The order is: what can be refused without TensorRT, then TensorRT itself, then images (INT8), then the build. Whatever
the engine is to compute in is in the graph that TensorRT is given (see precision.py). Where that graph is another than
the ONNX file's, it must read what the file reads, else no engine is written.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from inkmill.config.load import require
from inkmill.config.results import Results, open_results
from inkmill.config.spec import Spec
from inkmill.crypt import Key, find_key, sealed, told
from inkmill.data.jobs.sample import SampleSet
from inkmill.deploy.export.parity import HALF_SHARE, Parity, compare
from inkmill.deploy.outputs import exported, mebibytes, output_path, print_line, with_step, write_companions
from inkmill.deploy.samples import verification_samples, verification_sources
from inkmill.deploy.tensorrt.graph import EngineGraph, EngineShapes, Precision, open_graph, shapes
from inkmill.deploy.tensorrt.library import BuildOptions, Library, Progress, Say, compile_engine, load_tensorrt
from inkmill.deploy.tensorrt.precision import (
    engine_calibration,
    find_ranges,
    left_in_fp32,
    refuse_mismatch,
    with_precision,
)
from inkmill.errors import ConfigError, InkmillError
from inkmill.files import atomic_path, write_bytes_atomic, write_json_atomic
from inkmill.runtime.onnx import write_and_open


def build_engine(spec: Spec, *, console: Console | None = None, progress: Progress | None = None) -> Path:
    """Write `gen_trt_engine.trt_engine`, its card and metrics.json, and return the engine's path.

    Args:
        spec: `gen_trt_engine.onnx_file` is needed; INT8 of a float file needs images too.
        console: where lines go.
        progress: is called with how far TensorRT is.

    Raises:
        InkmillError: the file, the settings or the images will not do; TensorRT is missing or refuses; or the graph
            would read too much otherwise. No engine is written.
    """
    console = console or Console(quiet=True)
    settings, key = spec.gen_trt_engine, find_key(spec.encryption_key)
    given = Path(require(spec, "gen_trt_engine.onnx_file", "engine"))
    path = output_path("gen_trt_engine.trt_engine", settings.trt_engine, given, given.with_suffix(".engine").name)
    wanted = cast("Precision", settings.tensorrt.data_type.lower())

    def say(line: str) -> None:
        print_line(console, line)

    with open_results(spec, "engine") as results:
        if line := told(key):
            print_line(console, line)
        # 1. What can be refused without TensorRT; a model of `train` is exported first.
        is_trained = given.suffix in (".safetensors", ".pth")
        onnx_file = exported(spec, given, results.folder / "reader.onnx", console) if is_trained else given
        graph = open_graph(onnx_file, key)
        refuse_mismatch(graph, wanted, settings.tensorrt.layers_precision)
        left_in_fp32(graph.model, settings.tensorrt.layers_precision)
        sizes = shapes(graph, settings.tensorrt)

        # 2. TensorRT itself, before the minutes that calibration and comparison take.
        library = load_tensorrt()

        # 3. The graph in the engine's precision, and how alike it and the file's own read.
        model, compared = _graph_to_compile(spec, graph, wanted, results, key, say)

        # 4. The engine.
        facts = {**_facts(spec, wanted, library, sizes), "compiled_on": _choose_gpu(settings.gpu_id)}
        start = time.perf_counter()
        cache = Path(settings.timing_cache) if settings.timing_cache else None
        options = BuildOptions(settings.tensorrt.workspace_size, cache, settings.verbose)
        content = compile_engine(library, model, sizes, options, say, progress)
        seconds = time.perf_counter() - start

        # 5. It holds no header, so all that reading with it needs lies beside it.
        write_bytes_atomic(path, sealed(content, key))
        write_companions(path, with_step(graph.reader.header, "engine", onnx_file, **facts))
        files = {"trt_engine": str(path), "onnx_file": str(given), "onnx_sha256": graph.sha256}
        figures = {"seconds": seconds, "bytes": len(content), "graph": compared}
        write_json_atomic(results.folder / "metrics.json", {**files, **facts, **figures})
        say(_summary(path, wanted, library, sizes))
    return path


def _facts(spec: Spec, wanted: Precision, library: Library, sizes: EngineShapes) -> dict[str, Any]:
    settings = spec.gen_trt_engine.tensorrt
    return {
        "precision": wanted,
        "left_in_fp32": settings.layers_precision,
        "library": f"{library.name} {library.version}",
        "shapes": {"min": sizes.least, "opt": sizes.best, "max": sizes.most},
        "workspace_mib": settings.workspace_size,
    }


def _graph_to_compile(
    spec: Spec, graph: EngineGraph, wanted: Precision, results: Results, key: Key | None, say: Say
) -> tuple[Any, dict[str, Any] | None]:
    """Return the graph; where it is not the file's own, it is kept in the results folder, and compared with that."""
    if wanted == graph.precision:
        return graph.model, None
    ranges = find_ranges(graph, spec, say) if wanted == "int8" else None
    model = with_precision(graph, wanted, spec.gen_trt_engine.tensorrt.layers_precision, ranges)
    samples = _samples(spec, graph, wanted)
    copy = type(model)()
    copy.CopyFrom(model)  # the header goes into the copy: TensorRT is given a graph without metadata
    with atomic_path(results.folder / f"{wanted}.onnx") as temporary:
        parity = compare(graph.reader, write_and_open(copy, graph.reader.header, temporary, key), samples)
        say(
            f"{parity.equal:,} of {parity.crops:,} images are read alike in {wanted} ({samples.origin}), "
            f"probabilities within {parity.difference:.0e}; read by ONNX Runtime on the CPU, not by the engine"
        )
        compared = {**parity.as_dict(), "pictures": samples.origin}
        # Written for a graph that is refused, too; the figures of a finished build replace it.
        facts = {"onnx_file": graph.where, "onnx_sha256": graph.sha256, "precision": wanted, "graph": compared}
        write_json_atomic(results.folder / "metrics.json", facts)
        _refuse_difference(spec, graph, wanted, parity)
    return model, compared


def _refuse_difference(spec: Spec, graph: EngineGraph, wanted: Precision, parity: Parity) -> None:
    least = HALF_SHARE if wanted == "fp16" else 1 - spec.quantize.max_drop
    if parity.share < least:
        raise InkmillError(
            f"{graph.where}: in {wanted} {parity.equal:,} of {parity.crops:,} texts stay the same, and {least:.1%} are "
            "required; no engine was written: leave layers in fp32 with gen_trt_engine.tensorrt.layers_precision"
            + (", or allow more with quantize.max_drop" if wanted == "int8" else "")
        )


def _samples(spec: Spec, graph: EngineGraph, wanted: Precision) -> SampleSet:
    """Return what both graphs read; for int8 what it was calibrated on, where the spec names no other images."""
    own = spec.dataset.quant_calibration_dataset.images_dir
    has_folders = bool(spec.gen_trt_engine.tensorrt.calibration.cal_image_dir or own)
    if wanted == "int8" and has_folders and not verification_sources(spec)[1]:
        return engine_calibration(spec, graph.reader.resize)
    return verification_samples(spec, graph.reader.header)


def _choose_gpu(number: int) -> str:
    """Make a GPU the one that TensorRT compiles on, and return its name."""
    import torch

    if not torch.cuda.is_available():
        return "no GPU"
    if number >= torch.cuda.device_count():
        raise ConfigError(f"gen_trt_engine.gpu_id={number}: there are {torch.cuda.device_count()} GPUs, from 0")
    torch.cuda.set_device(number)
    torch.zeros(1, device="cuda")  # makes its context the current one, which TensorRT takes
    return torch.cuda.get_device_name(number)


def _summary(path: Path, wanted: Precision, library: Library, sizes: EngineShapes) -> str:
    width = f", width {sizes.least[3]} to {sizes.most[3]}" if sizes.least[3] != sizes.most[3] else ""
    return (
        f"{path}: {mebibytes(path)}; {wanted}, batch {sizes.least[0]} to {sizes.most[0]} "
        f"(tuned for {sizes.best[0]}){width}; compiled by {library.name} {library.version}, not run"
    )
