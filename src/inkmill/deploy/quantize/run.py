"""`quantize`: a reader whose convolutions and linear layers compute in int8, as an ONNX file with Q/DQ nodes.

Ranges are measured on pictures of the training set, after training (static post-training quantisation); the runtime,
`evaluate` and `infer` read the file as any other of `export`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from inkmill.config.load import require
from inkmill.config.results import open_results
from inkmill.config.spec import Spec
from inkmill.crypt import find_key, read_plain
from inkmill.deploy.quantize.compare import drop, read_all, share_equal, show
from inkmill.deploy.quantize.graph import Layer, asked_for, find_layers, load_graph, measure_ranges
from inkmill.deploy.quantize.pictures import Pictures, open_pictures
from inkmill.deploy.quantize.search import Chosen, search
from inkmill.errors import ConfigError
from inkmill.files import atomic_path, write_json_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step, with_speeds, write_model_card
from inkmill.modelfile.onnx_writer import written
from inkmill.runtime.onnx import OnnxReader
from inkmill.runtime.speed import images_per_second, medians


def quantize(spec: Spec, *, console: Console | None = None) -> Path:
    """Quantise `quantize.model_path`, write `quantize.quantized_file` and metrics.json, and return the file's path.

    Args:
        spec: `quantize.model_path` and a training set are needed; without quantized_file the file's name is the model's
            with _int8.onnx. See `open_pictures` for what both readers are compared on.
        console: where the table goes.

    Raises:
        InkmillError: no model, no pictures, or int8 costs more than `quantize.max_drop`; no model file is written.
    """
    console = console or Console(quiet=True)
    given = Path(require(spec, "quantize.model_path", "quantize"))
    path, key = _place(spec, given), find_key(spec.encryption_key)
    with open_results(spec, "quantize") as results:
        source = given if given.suffix == ".onnx" else _export(spec, given, results.folder / "float.onnx", console)
        before = OnnxReader(source, "cpu", encryption_key=key)
        if before.card.model.input_resize == "height":
            raise ConfigError(
                f"{given}: its input width is free; quantize needs a reader with input_resize stretch or pad"
            )
        model = load_graph(read_plain(source, key), str(source))
        layers = find_layers(model)
        wanted = asked_for(layers, spec.quantize)
        calibration, checked = open_pictures(spec, before)
        ranges = measure_ranges(model, wanted, calibration.images)
        texts = read_all(before, checked.images)
        with atomic_path(path) as temporary:
            found = search(
                model,
                wanted,
                ranges,
                open_reader=lambda graph: written(graph, before.card, temporary, key),
                drop_of=lambda reader: drop(texts, read_all(reader, checked.images), checked.texts),
                images=checked.images,
                max_drop=spec.quantize.max_drop,
            )
            report = _report(spec, (before, texts), found, layers, wanted, calibration, checked)
            card = _card(before.card, given, report)
            both = images_per_second([before, written(found.model, card, temporary, key)], checked.images)
            report["before"]["images_per_second"], report["after"]["images_per_second"] = both
            card = with_speeds(card, before.runs_on, medians(both[1]))
            written(found.model, card, temporary, key)
            report["before"]["bytes"], report["after"]["bytes"] = source.stat().st_size, temporary.stat().st_size
        write_model_card(path, card)
        write_json_atomic(results.folder / "metrics.json", {"quantized_file": str(path), **report})
        show(console, report)
        console.print(f"{path}", highlight=False, markup=False)
    return path


def _place(spec: Spec, given: Path) -> Path:
    wanted = spec.quantize.quantized_file
    path = Path(wanted) if wanted else given.with_name(f"{given.stem}_int8.onnx")
    if path.suffix != ".onnx":
        raise ConfigError(f"quantize.quantized_file={path}: expected a name that ends in .onnx")
    if path.resolve() == given.resolve():
        raise ConfigError(f"quantize.quantized_file={path} is the model itself, which would be lost: give another name")
    return path


def _export(spec: Spec, given: Path, path: Path, console: Console) -> Path:
    from inkmill.deploy.export.onnx import export

    own = {"checkpoint": str(given), "onnx_file": str(path), "results_dir": str(path.parent / "export")}
    settings = spec.export.model_copy(update=own)
    return export(spec.model_copy(update={"export": settings}), console=console)


def _report(
    spec: Spec,
    before: tuple[OnnxReader, list[str]],
    found: Chosen,
    layers: Sequence[Layer],
    wanted: Sequence[Layer],
    calibration: Pictures,
    checked: Pictures,
) -> dict[str, Any]:
    after = read_all(found.reader, checked.images)
    in_int8 = [layer for layer in wanted if layer not in found.in_float]
    accuracy = [None if checked.texts is None else share_equal(texts, checked.texts) for texts in (before[1], after)]
    return {
        "setting": spec.quantize.model_dump(mode="json", include={"algorithm", "calibration_images", "max_drop"}),
        "device": before[0].runs_on,
        "calibration": _named(calibration),
        "checked": _named(checked),
        "strings_equal": share_equal(before[1], after),
        "drop": found.drop,
        "tried": found.tried,
        "before": {"word_accuracy": accuracy[0]},
        "after": {"word_accuracy": accuracy[1]},
        "layers": {
            "int8": [layer.name for layer in in_int8],
            "float": [layer.name for layer in layers if layer not in in_int8],
        },
    }


def _named(pictures: Pictures) -> dict[str, Any]:
    return {"name": pictures.name, "count": len(pictures.images), "skipped": pictures.skipped}


def _card(card: ModelHeader, given: Path, report: dict[str, Any]) -> ModelHeader:
    """Return the card with this step in its history; the scores of the float reader are not those of this one."""
    told = {name: value for name, value in card.provenance.items() if name not in ("scores", "speeds")}
    entry = step(
        "quantize",
        source=given.name,
        setting=report["setting"],
        int8=len(report["layers"]["int8"]),
        in_float=report["layers"]["float"],
        strings_equal=report["strings_equal"],
        word_accuracy={when: report[when]["word_accuracy"] for when in ("before", "after")},
    )
    return card.model_copy(update={"provenance": {**told, "made": [*card.history(), entry]}})
