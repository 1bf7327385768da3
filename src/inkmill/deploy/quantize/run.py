"""`quantize`: a reader whose convolutions and linear layers compute in int8, as an ONNX file with Q/DQ nodes.

Ranges are measured on images of the training set, after training (static post-training quantisation); the runtime,
`evaluate` and `infer` read the file as any other of `export`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from inkmill.config.load import require
from inkmill.config.results import open_results
from inkmill.config.spec import Spec
from inkmill.crypt import find_key, read_plain, told
from inkmill.data.jobs.sample import SampleSet, read_resized
from inkmill.deploy.outputs import comparison_table, exported, output_path, print_line, speed_rows, with_step
from inkmill.deploy.quantize.layers import Layer, asked_for, find_layers, load_graph, measure_ranges
from inkmill.deploy.quantize.search import RANKED_ON, Chosen, search
from inkmill.deploy.samples import calibration_samples, verification_sources
from inkmill.files import atomic_path, write_json_atomic
from inkmill.modelfile.model_card import with_speeds, write_model_card
from inkmill.runtime.onnx import OnnxReader, write_and_open
from inkmill.runtime.reader import BaseReader
from inkmill.runtime.speed import BATCHES, ROUNDS, images_per_second, medians
from inkmill.tasks.base import Prediction, Task, Truth

CHECKED = 2000
"""Images on which both readers are compared, spread evenly over the set: 1 of 2000 is 0.05 %."""
READ_AT_ONCE = 64


def quantize(spec: Spec, *, console: Console | None = None) -> Path:
    """Quantise `quantize.model_path`, write `quantize.quantized_file` and metrics.json, and return the file's path.

    Args:
        spec: `quantize.model_path` and a training set are needed; without quantized_file the file's name is the model's
            with _int8.onnx. Both readers are compared on the test sets, else on the validation sets, else on what
            training holds out.
        console: where the table goes.

    Raises:
        InkmillError: no model, no images, or int8 costs more than `quantize.max_drop`; no model file is written.
    """
    console = console or Console(quiet=True)
    given = Path(require(spec, "quantize.model_path", "quantize"))
    default = f"{given.stem}_int8.onnx"
    path = output_path("quantize.quantized_file", spec.quantize.quantized_file, given, default, (".onnx",))
    key = find_key(spec.encryption_key)
    with open_results(spec, "quantize") as results:
        if line := told(key):
            print_line(console, line)
        # 1. The float reader and its graph; a model of `train` is exported first.
        float_file = results.folder / "float.onnx"
        source = given if given.suffix == ".onnx" else exported(spec, given, float_file, console)
        before = OnnxReader(source, "cpu", encryption_key=key)
        model = load_graph(read_plain(source, key), str(source), before.task.plain_decoder().needs)
        layers = find_layers(model)
        wanted = asked_for(layers, spec.quantize)

        # 2. Ranges on one set of images, and what the float reader says of another.
        calibration, checked, truths = _samples(spec, before)
        ranges = measure_ranges(model, wanted, calibration)
        read = read_all(before, checked)

        # 3. The graph with the fewest layers in float that loses no more than the bound.
        with atomic_path(path) as temporary:
            found = search(
                model,
                wanted,
                ranges,
                open_reader=lambda graph: write_and_open(graph, before.header, temporary, key),
                drop_of=lambda reader: before.task.lost(read, read_all(reader, checked), truths),
                images=of_one_size(checked, RANKED_ON),
                max_drop=spec.quantize.max_drop,
            )

            # 4. Both readers side by side: strings, accuracy, speed and size.
            report = _report(spec, before, read, found, layers, wanted, checked, truths)
            report["calibration"] = _named(calibration)
            header = _header(before, given, report)
            after = write_and_open(found.model, header, temporary, key)
            speeds = images_per_second([before, after], of_one_size(checked, max(BATCHES)))
            report["before"]["images_per_second"], report["after"]["images_per_second"] = speeds
            header = with_speeds(header, before.runs_on, medians(speeds[1]))
            write_and_open(found.model, header, temporary, key)
            report["before"]["bytes"] = source.stat().st_size
            report["after"]["bytes"] = temporary.stat().st_size
        write_model_card(path, header)
        write_json_atomic(results.folder / "metrics.json", {"quantized_file": str(path), **report})
        show(console, report)
        print_line(console, str(path))
    return path


def _samples(spec: Spec, reader: BaseReader) -> tuple[SampleSet, SampleSet, list[Truth] | None]:
    """Return the samples to calibrate on, those to compare on, and the latter's truths where they have labels."""
    calibration = calibration_samples(spec, reader.resize, spec.quantize.calibration_images)
    calibration.sort_by_size()
    where, sources = verification_sources(spec)
    if not sources:  # a folder of images alone, of which nobody knows what they say
        return calibration, calibration, None
    checked = read_resized(sources, CHECKED, reader.resize)
    checked.origin = f"{where}: {checked.origin}"
    checked.sort_by_size()
    return calibration, checked, reader.task.truths(checked.targets)


def _report(
    spec: Spec,
    before: OnnxReader,
    read: list[Prediction],
    found: Chosen,
    layers: Sequence[Layer],
    wanted: Sequence[Layer],
    checked: SampleSet,
    truths: list[Truth] | None,
) -> dict[str, Any]:
    after = read_all(found.reader, checked)
    in_int8 = [layer for layer in wanted if layer not in found.in_float]
    scores = [{} if truths is None else before.task.score(truths, some).headline() for some in (read, after)]
    return {
        "setting": spec.quantize.model_dump(mode="json", include={"algorithm", "calibration_images", "max_drop"}),
        "device": before.runs_on,
        "checked": _named(checked),
        "strings_equal": share_equal(before.task, read, after),
        "drop": found.drop,
        "tried": found.tried,
        "before": {"scores": scores[0]},
        "after": {"scores": scores[1]},
        "layers": {
            "int8": [layer.name for layer in in_int8],
            "float": [layer.name for layer in layers if layer not in in_int8],
        },
    }


def _named(samples: SampleSet) -> dict[str, Any]:
    return {"name": samples.origin, "count": len(samples.images), "skipped": samples.unreadable}


def _header(before: OnnxReader, given: Path, report: dict[str, Any]) -> Any:
    return with_step(
        before.header,
        "quantize",
        given,
        setting=report["setting"],
        int8=len(report["layers"]["int8"]),
        in_float=report["layers"]["float"],
        strings_equal=report["strings_equal"],
        scores={when: report[when]["scores"] for when in ("before", "after")},
    )


def read_all(reader: BaseReader, samples: SampleSet) -> list[Prediction]:
    """Return the predictions for resized images that are sorted by size, in order."""
    sizes, found = np.array(samples.sizes, np.int32), list[Prediction]()
    at_once = min(READ_AT_ONCE, reader.batch_size)
    for batch in samples.batches(at_once):
        found += reader.predict(batch, sizes=sizes[len(found) : len(found) + len(batch)])
    return found


def of_one_size(samples: SampleSet, count: int) -> NDArray[np.uint8]:
    """Return up to `count` images of the size that most images have, uint8 (N, H, W, C)."""
    ((shape, _),) = Counter(image.shape for image in samples.images).most_common(1)
    return np.stack([image for image in samples.images if image.shape == shape][:count])


def share_equal(task: Task, ours: Sequence[Prediction], theirs: Sequence[Prediction]) -> float:
    """Return the share of pairs that say the same, in 0..1."""
    return sum(task.agree(*pair) for pair in zip(ours, theirs, strict=True)) / len(ours)


def show(console: Console, report: dict[str, Any]) -> None:
    """Print the figures before and after as a table, and which layers stay in float."""
    before, after = report["before"], report["after"]
    table = comparison_table("float", "int8", "int8 / float")
    table.add_row("predictions equal", "", f"{report['strings_equal']:.2%}", "")
    for title in before["scores"]:
        table.add_row(title.replace("_", " "), *(f"{side['scores'][title]:.2%}" for side in (before, after)), "")
    sizes = before["bytes"], after["bytes"]
    table.add_row("file", *(f"{size / 2**20:.2f} MiB" for size in sizes), f"{sizes[1] / sizes[0]:.2f}")
    for row in speed_rows(before, after):
        table.add_row(*row)
    console.print(table)
    layers = report["layers"]
    kept = f": {', '.join(layers['float'])}" if layers["float"] else ""
    print_line(console, f"{len(layers['int8'])} layers in int8, {len(layers['float'])} left in float{kept}")
    checked, measured = (_counted(report[name]) for name in ("checked", "calibration"))
    print_line(console, f"compared on {checked}; ranges measured on {measured}")
    print_line(console, f"images/s on {report['device']}, median of {ROUNDS} rounds in turn (least-most)")


def _counted(samples: dict[str, Any]) -> str:
    lost = f" ({samples['skipped']:,} could not be decoded)" if samples["skipped"] else ""
    return f"{samples['count']:,} images of {samples['name']}{lost}"
