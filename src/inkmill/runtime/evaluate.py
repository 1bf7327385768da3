"""`evaluate`: how well a reader reads, on any number of sets, with every wrong reading to look at."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from rapidfuzz.distance import Levenshtein
from rich.console import Console
from rich.table import Table

from inkmill.api import load
from inkmill.config.dataset import SourceSpec
from inkmill.config.load import require
from inkmill.config.results import Results, open_results
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.decode import Image, decode
from inkmill.data.sources import Source, open_source
from inkmill.data.types import Text
from inkmill.errors import ConfigError, DataError
from inkmill.files import write_json_atomic, write_text_atomic
from inkmill.report import Page, Picture
from inkmill.runtime.predict import decoding
from inkmill.runtime.reader import BaseReader
from inkmill.tasks.recognition.metrics import RecognitionScores, score
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.timings import Timings
from inkmill.training.prepare import fresh_name

COLUMNS = ("set", "key", "truth", "text", "confidence", "distance")


@dataclass(slots=True)
class Row:
    """One image's truth and reading."""

    set: str
    index: int
    key: str
    truth: str
    text: str
    confidence: float
    distance: int


def evaluate(spec: Spec, *, console: Console | None = None) -> dict[str, Any]:
    """Score a reader and write metrics.json, predictions.csv and errors.html.

    Args:
        spec: `evaluate.checkpoint` and the test sets are needed.
        console: where the table goes.

    Returns:
        What metrics.json holds: the scores over all sets at the top, those of each set under `sets`.

    Raises:
        InkmillError: no model, no data, or no place to write.
    """
    console = console or Console(quiet=True)
    checkpoint = require(spec, "evaluate.checkpoint", "evaluate")
    if not (spec.evaluate.test or spec.evaluate.test_dataset_dir):
        raise ConfigError("evaluate needs a test set: give evaluate.test=PATH, or evaluate.test_dataset_dir")
    if spec.evaluate.trt_engine:
        console.print("evaluate.trt_engine is accepted and has no effect here: evaluate.checkpoint is scored")
    with open_results(spec, "evaluate") as results:
        reader = load(checkpoint, encryption_key=spec.encryption_key, **decoding(spec.evaluate))
        console.print(f"{checkpoint}: {reader.described()}", markup=False, highlight=False)
        sources = open_tests(spec)
        timings = Timings()
        rows = read_tests(reader, spec, sources, console, timings)
        timings.start()
        metrics = scores_of(rows, list(sources))
        timings.lap("metric")
        metrics |= {"checkpoint": str(checkpoint), "seconds": timings.as_dict()}
        write_json_atomic(results.folder / "metrics.json", metrics)
        write_text_atomic(results.folder / "predictions.csv", _as_csv(rows))
        _error_page(results, rows, sources, metrics, spec.evaluate.worst)
        _show(console, metrics, timings, results)
        results.status("RUNNING", "evaluated", kpi={"test_acc": metrics["word_accuracy"], "cer": metrics["cer"]})
    return metrics


def open_tests(spec: Spec) -> dict[str, Source]:
    """Return the test sets that the spec names, by name; none where it names none."""
    specs = list(spec.evaluate.test)
    if spec.evaluate.test_dataset_dir:
        specs.append(
            SourceSpec(path=spec.evaluate.test_dataset_dir, gt_file=spec.evaluate.test_dataset_gt_file or None)
        )
    sources: dict[str, Source] = {}
    for one in specs:
        source = open_source(one, label_pattern=spec.dataset.label_pattern)
        sources[fresh_name(source.name, sources)] = source
    return sources


def read_tests(
    reader: BaseReader, spec: Spec, sources: dict[str, Source], console: Console, timings: Timings | None = None
) -> list[Row]:
    """Return truth and reading of every image; what cannot be decoded is said and counts as read wrongly.

    `phases` gets the seconds.
    """
    timings = timings or Timings()
    return [row for name, source in sources.items() for row in _read_set(reader, spec, name, source, console, timings)]


def _read_set(
    reader: BaseReader, spec: Spec, name: str, source: Source, console: Console, timings: Timings
) -> list[Row]:
    if len(source) == 0:
        raise DataError(f"{name}: the test set is empty")
    normaliser = Normaliser(reader.card.normalise)
    plan = LoadPlan(
        source, reader.resize, batch_size=spec.evaluate.batch_size, shuffle=False, on_bad_sample="skip", max_bad=1.0
    )
    rows: dict[int, Row] = {}
    with make_loader(plan, workers=spec.evaluate.workers) as loader:
        for batch, texts, confidences in reader.read_batches(loader, timings):
            truths = normaliser.apply_all(batch.texts)
            columns = zip(batch.index.tolist(), batch.keys, truths, texts, confidences.tolist(), strict=True)
            for index, key, truth, text, confidence in columns:
                rows[index] = Row(name, index, key, truth, text, confidence, Levenshtein.distance(truth, text))
        reasons = {key: reason for reason, keys in loader.stats.skipped.items() for key in keys}
    # An image that cannot be decoded is a wrong reading, not a smaller test set.
    for index in set(range(len(source))) - rows.keys():
        key, target = source.key(index), source.target(index)
        truth = normaliser.apply(target.value) if isinstance(target, Text) else ""
        why = f"{name}: {key} cannot be read ({reasons.get(key, 'unknown')}); it counts as read wrongly"
        console.print(why, markup=False, highlight=False)
        rows[index] = Row(name, index, key, truth, "", 0.0, len(truth))
    return [rows[index] for index in sorted(rows)]


def scores_of(rows: list[Row], names: list[str]) -> dict[str, Any]:
    """Return the scores over all rows, and under `sets` those of each set of `names`."""

    def scores(some: list[Row]) -> RecognitionScores:
        return score([row.truth for row in some], [row.text for row in some])

    per_set = {name: scores([row for row in rows if row.set == name]).as_dict() for name in names}
    return scores(rows).as_dict() | {"sets": per_set}


def _as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([row.set, row.key, row.truth, row.text, f"{row.confidence:.4f}", row.distance])
    return text.getvalue()


def _error_page(
    results: Results, rows: list[Row], sources: dict[str, Source], metrics: dict[str, Any], worst: int
) -> None:
    wrong = sorted((row for row in rows if row.distance), key=lambda row: (-row.distance, -row.confidence, row.key))
    page = Page("Errors")
    page.add_text(
        f"{len(wrong)} of {len(rows)} images read wrongly: "
        f"word accuracy {metrics['word_accuracy']:.2%}, CER {metrics['cer']:.2%}."
    )
    page.add_table(
        ("set", "samples", "word accuracy", "CER"),
        [(name, s["samples"], f"{s['word_accuracy']:.2%}", f"{s['cer']:.2%}") for name, s in metrics["sets"].items()],
    )
    shown = wrong[:worst]
    page.add_heading(f"The {len(shown)} worst: most characters wrong, then most confident")
    page.add_pictures(_picture(row, sources[row.set]) for row in shown)
    page.write(results.folder / "errors.html")


def _picture(row: Row, source: Source) -> Picture:
    image: Image | str
    try:
        image = decode(source.image(row.index), 3)
    except DataError as error:
        image = str(error)
    return Picture(image, f"{row.truth!r}\nread as {row.text!r} ({row.confidence:.2f})\n{row.key}", "wrong")


def _show(console: Console, metrics: dict[str, Any], timings: Timings, results: Results) -> None:
    table = Table()
    for heading in ("set", "images", "words", "any case", "36 chars", "CER", "1-NED"):
        table.add_column(heading, justify="left" if heading == "set" else "right")
    sets = list(metrics["sets"].items())
    for name, s in [*sets, ("all", metrics)] if len(sets) > 1 else sets:
        shares = (
            s[k] for k in ("word_accuracy", "word_accuracy_ignore_case", "word_accuracy_36", "cer", "one_minus_ned")
        )
        table.add_row(name, f"{s['samples']:,}", *(f"{share:.2%}" for share in shares))
    console.print(table)
    took = Table("time", *timings.shares(), "all")
    took.add_row("seconds", *(f"{some:.1f}" for some, _ in timings.shares().values()), f"{timings.total:.1f}")
    took.add_row("share", *(f"{share:.0%}" for _, share in timings.shares().values()), "")
    console.print(took)
    console.print(
        f"metrics.json, predictions.csv and errors.html are in {results.folder}", markup=False, highlight=False
    )
