"""`engine`: a reader compiled by TensorRT for one kind of GPU.

The order is: what can be refused without TensorRT, then TensorRT itself, then pictures (INT8), then the build. Whatever
the engine is to compute in is in the graph that TensorRT is given (see precision.py). Where that graph is another than
the ONNX file's, it must read what the file reads, else no engine is made.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from inkmill.config.load import require
from inkmill.config.results import Results, open_results
from inkmill.config.spec import Spec
from inkmill.crypt import Key, find_key, sealed
from inkmill.deploy.export.parity import HALF_SHARE, Parity, compare
from inkmill.deploy.export.pictures import Pictures, choose_pictures
from inkmill.deploy.tensorrt.calibration import calibration_pictures, find_ranges
from inkmill.deploy.tensorrt.graph import Graph, Precision, Shapes, open_graph, shapes
from inkmill.deploy.tensorrt.precision import left_in_fp32, refuse_mismatch, with_precision
from inkmill.deploy.tensorrt.tensorrt import Library, Progress, Say, Wishes, compile_engine, load_tensorrt
from inkmill.errors import ConfigError, InkmillError
from inkmill.files import atomic_path, write_bytes_atomic, write_json_atomic, write_text_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step, write_model_card
from inkmill.modelfile.onnx_writer import written
from inkmill.runtime.evaluate import open_tests


def build_engine(spec: Spec, *, console: Console | None = None, progress: Progress | None = None) -> Path:
    """Write `gen_trt_engine.trt_engine`, its card and metrics.json, and return the engine's path.

    Args:
        spec: `gen_trt_engine.onnx_file` is needed; INT8 of a float file needs pictures too.
        console: where lines go.
        progress: told how far TensorRT is.

    Raises:
        InkmillError: the file, the settings or the pictures will not do; TensorRT is missing or refuses; or the graph
            would read too much otherwise. No engine is written.
    """
    console = console or Console(quiet=True)
    settings = spec.gen_trt_engine
    given = Path(require(spec, "gen_trt_engine.onnx_file", "engine"))
    path, key = _place(spec, given), find_key(spec.encryption_key)
    wanted = cast("Precision", settings.tensorrt.data_type.lower())
    with open_results(spec, "engine") as results:
        graph = open_graph(_onnx(spec, given, results.folder, console), key)
        refuse_mismatch(graph, wanted, settings.tensorrt.layers_precision)
        left_in_fp32(graph.model, settings.tensorrt.layers_precision)
        sizes, library = shapes(graph, settings.tensorrt), load_tensorrt()
        say = _lines(console)
        model, compared = _graph_to_compile(spec, graph, wanted, results, key, say)
        facts = {**_facts(spec, wanted, library, sizes), "compiled_on": _choose_gpu(settings.gpu_id)}
        start = time.perf_counter()
        content = compile_engine(library, model, sizes, _wishes(spec), say, progress)
        figures = {"seconds": time.perf_counter() - start, "bytes": len(content), "graph": compared}
        card = _card(graph, facts)
        write_bytes_atomic(path, sealed(content, key))
        write_model_card(path, card)
        write_text_atomic(path.with_name(f"{path.name}.characters.txt"), "\n".join(card.charset) + "\n")
        files = {"trt_engine": str(path), "onnx_file": str(given), "onnx_sha256": graph.sha256}
        write_json_atomic(results.folder / "metrics.json", {**files, **facts, **figures})
        say(_told(path, wanted, library, sizes))
    return path


def _lines(console: Console) -> Say:
    return lambda line: console.print(line, highlight=False, markup=False)


def _wishes(spec: Spec) -> Wishes:
    settings = spec.gen_trt_engine
    cache = Path(settings.timing_cache) if settings.timing_cache else None
    return Wishes(settings.tensorrt.workspace_size, cache, settings.verbose)


def _facts(spec: Spec, wanted: Precision, library: Library, sizes: Shapes) -> dict[str, Any]:
    settings = spec.gen_trt_engine.tensorrt
    return {
        "precision": wanted,
        "left_in_fp32": settings.layers_precision,
        "library": f"{library.name} {library.version}",
        "shapes": {"min": sizes.least, "opt": sizes.best, "max": sizes.most},
        "workspace_mib": settings.workspace_size,
    }


def _place(spec: Spec, given: Path) -> Path:
    wanted = spec.gen_trt_engine.trt_engine
    path = Path(wanted) if wanted else given.with_suffix(".engine")
    if path.resolve() == given.resolve():
        raise ConfigError(
            f"gen_trt_engine.trt_engine={path} is the reader itself, which would be lost: give another name"
        )
    return path


def _onnx(spec: Spec, given: Path, folder: Path, console: Console) -> Path:
    """Return the ONNX file; a model of `train` is exported first."""
    if given.suffix not in (".safetensors", ".pth"):
        return given
    from inkmill.deploy.export.onnx import export

    path = folder / "reader.onnx"
    settings = spec.export.model_copy(
        update={"checkpoint": str(given), "onnx_file": str(path), "results_dir": str(folder / "export")}
    )
    return export(spec.model_copy(update={"export": settings}), console=console)


def _graph_to_compile(
    spec: Spec, graph: Graph, wanted: Precision, results: Results, key: Key | None, say: Say
) -> tuple[Any, dict[str, Any] | None]:
    """Return the graph, and where it is not the file's own, how alike both read; it is kept in the results folder."""
    if wanted == graph.precision:
        return graph.model, None
    ranges = find_ranges(graph, spec, say) if wanted == "int8" else None
    model = with_precision(graph, wanted, spec.gen_trt_engine.tensorrt.layers_precision, ranges)
    pictures = _pictures(spec, graph, wanted)
    copy = type(model)()
    copy.CopyFrom(model)  # the card goes into it
    with atomic_path(results.folder / f"{wanted}.onnx") as temporary:
        parity = compare(graph.reader, written(copy, graph.reader.card, temporary, key), pictures)
        say(
            f"{parity.equal:,} of {parity.crops:,} pictures are read alike in {wanted} ({pictures.origin}), "
            f"probabilities within {parity.difference:.0e}; read by ONNX Runtime on the CPU, not by the engine"
        )
        compared = {**parity.as_dict(), "pictures": pictures.origin}
        # Also of a graph that is refused; the figures of a whole build take its place.
        told = {"onnx_file": graph.where, "onnx_sha256": graph.sha256, "precision": wanted, "graph": compared}
        write_json_atomic(results.folder / "metrics.json", told)
        _refuse_unlike(spec, graph, wanted, parity)
    return model, compared


def _refuse_unlike(spec: Spec, graph: Graph, wanted: Precision, parity: Parity) -> None:
    least = HALF_SHARE if wanted == "fp16" else 1 - spec.quantize.max_drop
    if parity.share < least:
        raise InkmillError(
            f"{graph.where}: in {wanted} {parity.equal:,} of {parity.crops:,} texts stay the same, and {least:.1%} are "
            "asked for; no engine was made: leave layers in fp32 with gen_trt_engine.tensorrt.layers_precision"
            + (", or allow more with quantize.max_drop" if wanted == "int8" else "")
        )


def _pictures(spec: Spec, graph: Graph, wanted: Precision) -> Pictures:
    """Return what both graphs read; those that int8 was measured on, where the spec names no others."""
    sets = spec.dataset.sources("train") or spec.dataset.sources("val") or open_tests(spec)
    own = spec.dataset.quant_calibration_dataset.images_dir
    folders = spec.gen_trt_engine.tensorrt.calibration.cal_image_dir or own
    if wanted == "int8" and folders and not sets:
        return calibration_pictures(spec, graph.reader.resize)
    return choose_pictures(spec, graph.reader.card)


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


def _card(graph: Graph, facts: dict[str, Any]) -> ModelHeader:
    """Return the reader's card with this step in its history; what was measured of the reader is not of the engine."""
    card = graph.reader.card
    told = {name: value for name, value in card.provenance.items() if name not in ("scores", "speeds")}
    entry = step("engine", source=Path(graph.where).name, **facts)
    return card.model_copy(update={"provenance": {**told, "made": [*card.history(), entry]}})


def _told(path: Path, wanted: Precision, library: Library, sizes: Shapes) -> str:
    width = f", width {sizes.least[3]} to {sizes.most[3]}" if sizes.least[3] != sizes.most[3] else ""
    return (
        f"{path}: {path.stat().st_size / 2**20:.1f} MiB; {wanted}, batch {sizes.least[0]} to {sizes.most[0]} "
        f"(tuned for {sizes.best[0]}){width}; compiled by {library.name} {library.version}, not run"
    )
