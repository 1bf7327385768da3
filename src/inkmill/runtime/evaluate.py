"""`evaluate`: how good a model is, on any number of sets, with every wrong answer to look at."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from inkmill.config.dataset import SourceSpec
from inkmill.config.load import require
from inkmill.config.results import Results, open_results
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.decode import Image, decode
from inkmill.data.sources import Source, fresh_name, open_source
from inkmill.errors import ConfigError, DataError
from inkmill.files import write_json_atomic, write_text_atomic
from inkmill.report import Page, Picture
from inkmill.runtime.reader import BaseReader, load_reader
from inkmill.runtime.vertical import BothWays
from inkmill.tasks.base import Prediction, Scores, Task, Truth
from inkmill.timings import Timings


@dataclass(slots=True)
class Row:
    """One image's truth and prediction."""

    set: str
    index: int
    key: str
    truth: Truth
    prediction: Prediction


def evaluate(spec: Spec, *, console: Console | None = None) -> dict[str, Any]:
    """Score a model and write metrics.json, predictions.csv and errors.html.

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
        # 1. Open model and sets.
        reader = load_reader(checkpoint, encryption_key=spec.encryption_key)
        reader.use(reader.task.decoder_of(spec.evaluate))
        console.print(f"{checkpoint}: {reader.described()}", markup=False, highlight=False)
        sources = open_tests(spec, reader.task.folder_format)
        pattern = reader.header.label_pattern
        for name, source in sources.items():
            for line in (f"{name}: {len(source):,} samples", *(f"  {note}" for note in source.notes)):
                console.print(line, markup=False, highlight=False)
        # 2. Read every image, then score.
        timings = Timings()
        rows = read_tests(reader, spec, sources, console, timings)
        timings.start()
        scores, per_set = score_rows(reader.task, rows, list(sources))
        timings.lap("metric")
        # 3. Write what was found.
        beyond = _say_beyond(reader.task, rows, sources, spec, pattern, console)
        told = {"beyond": beyond, "checkpoint": str(checkpoint), "seconds": timings.as_dict()}
        metrics = as_metrics(scores, per_set) | told
        write_json_atomic(results.folder / "metrics.json", metrics)
        write_text_atomic(results.folder / "predictions.csv", _as_csv(reader.task, rows))
        _error_page(results, reader.task, rows, sources, scores, per_set, spec.evaluate.worst)
        _show(console, scores, per_set, timings, results)
        results.status("RUNNING", "evaluated", kpi={"test_acc": scores.primary, **scores.headline()})
    return metrics


def open_tests(spec: Spec, folder_format: str = "") -> dict[str, Source]:
    """Return the test sets that the spec names, by name; none where it names none.

    Args:
        spec: the resolved spec.
        folder_format: see `Task.folder_format`.
    """
    specs = list(spec.evaluate.test)
    if spec.evaluate.test_dataset_dir:
        specs.append(
            SourceSpec(path=spec.evaluate.test_dataset_dir, gt_file=spec.evaluate.test_dataset_gt_file or None)
        )
    sources: dict[str, Source] = {}
    for one in specs:
        source = open_source(one, label_pattern=spec.dataset.label_pattern, folder_format=folder_format)
        sources[fresh_name(source.name, sources)] = source
    return sources


def read_tests(
    reader: BaseReader, spec: Spec, sources: dict[str, Source], console: Console, timings: Timings | None = None
) -> list[Row]:
    """Return truth and prediction of every image; what cannot be decoded is printed and counts as wrong.

    `timings` gets the seconds.
    """
    timings = timings or Timings()
    return [row for name, source in sources.items() for row in _read_set(reader, spec, name, source, console, timings)]


def _read_set(
    reader: BaseReader, spec: Spec, name: str, source: Source, console: Console, timings: Timings
) -> list[Row]:
    if len(source) == 0:
        raise DataError(f"{name}: the test set is empty")
    task = reader.task
    ways = BothWays(source, task, reader.resize.channels, reader.both_ways)
    plan = LoadPlan(
        ways.source,
        reader.resize,
        batch_size=spec.evaluate.batch_size,
        shuffle=False,
        on_bad_sample="skip",
        max_bad=1.0,
    )
    rows: dict[int, Row] = {}
    with make_loader(plan, workers=spec.evaluate.workers) as loader:
        for batch, predictions, *_ in reader.read_batches(loader, timings):
            truths = task.truths(batch.targets)
            columns = zip(batch.index.tolist(), batch.keys, truths, predictions, strict=True)
            for index, key, truth, prediction in columns:
                if (taken := ways.take(index, prediction)) is not None:
                    rows[taken[0]] = Row(name, taken[0], key, truth, taken[1])
        reasons = {key: reason for reason, keys in loader.stats.skipped.items() for key in keys}
    # An image that cannot be decoded is a wrong answer, not a smaller test set.
    for index in set(range(len(source))) - rows.keys():
        key, (truth,) = source.key(index), task.truths([source.target(index)])
        why = f"{name}: {key} cannot be read ({reasons.get(key, 'unknown')}); it counts as read wrongly"
        console.print(why, markup=False, highlight=False)
        rows[index] = Row(name, index, key, truth, task.no_prediction())
    return [rows[index] for index in sorted(rows)]


def score_rows(task: Task, rows: list[Row], names: list[str]) -> tuple[Scores, dict[str, Scores]]:
    """Return the scores over all rows, and those of each set of `names`."""

    def scores(some: list[Row]) -> Scores:
        return task.score([row.truth for row in some], [row.prediction for row in some])

    return scores(rows), {name: scores([row for row in rows if row.set == name]) for name in names}


def as_metrics(scores: Scores, per_set: dict[str, Scores]) -> dict[str, Any]:
    """Return what metrics.json holds of scores: those over all sets at the top, those of each set under `sets`."""
    return scores.as_dict() | {"sets": {name: one.as_dict() for name, one in per_set.items()}}


def _say_beyond(
    task: Task, rows: list[Row], sources: dict[str, Source], spec: Spec, pattern: str, console: Console
) -> dict[str, int]:
    """Print how many labels of each set the model cannot give, and why; return their numbers by set."""
    found = {}
    for name, source in sources.items():
        truths = [row.truth for row in rows if row.set == name]
        found[name], why = task.beyond(truths)
        if not why:
            continue
        line = f"{name}: {found[name]:,} of {len(truths):,} labels cannot be read right by this model: {why}"
        # The usual cause: names that hold more than the label.
        if any(leaf.label_pattern for leaf in source.leaves()) and pattern not in ("", spec.dataset.label_pattern):
            line += (
                f"; training took labels from names by another pattern: dataset.label_pattern={shlex.quote(pattern)}"
            )
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return found


def _as_csv(task: Task, rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("set", "key", *task.columns))
    for row in rows:
        writer.writerow([row.set, row.key, *task.prediction_row(row.truth, row.prediction)])
    return text.getvalue()


def _error_page(
    results: Results,
    task: Task,
    rows: list[Row],
    sources: dict[str, Source],
    scores: Scores,
    per_set: dict[str, Scores],
    worst: int,
) -> None:
    rows = sorted(rows, key=lambda row: row.key)  # the page does not depend on the order of reading
    truths, predictions = [row.truth for row in rows], [row.prediction for row in rows]
    wrong = sum(task.error(*pair) is not None for pair in zip(truths, predictions, strict=True))
    page = Page("Errors")
    shares = scores.headline()
    figures = ", ".join(f"{task.figures[name]} {share:.2%}" for name, share in shares.items())
    page.add_text(f"{wrong:,} of {len(rows):,} images read wrongly: {figures}.")
    page.add_table(
        ("set", "samples", *task.figures.values()),
        [(name, one.samples, *(f"{s:.2%}" for s in one.headline().values())) for name, one in per_set.items()],
    )
    for heading, positions in task.worst_errors(truths, predictions, worst):
        page.add_heading(heading)
        page.add_pictures(_pictures(task, [rows[position] for position in positions], sources), task.large_pictures)
    page.write(results.folder / "errors.html")


def _pictures(task: Task, rows: list[Row], sources: dict[str, Source]) -> Iterator[Picture]:
    for row in rows:
        image: Image | str
        try:
            image = task.draw(decode(sources[row.set].image(row.index), 3), row.truth, row.prediction)
        except DataError as error:
            image = str(error)
        yield Picture(image, f"{task.compare(row.truth, row.prediction)}\n{row.key}", "wrong")


def _show(console: Console, scores: Scores, per_set: dict[str, Scores], timings: Timings, results: Results) -> None:
    table = Table()
    for heading in ("set", "images", *scores.table()):
        table.add_column(heading, justify="left" if heading == "set" else "right")
    for name, one in [*per_set.items(), ("all", scores)] if len(per_set) > 1 else per_set.items():
        shares = ("-" if share is None else f"{share:.2%}" for share in one.table().values())
        table.add_row(name, f"{one.samples:,}", *shares)
    console.print(table)
    took = Table("time", *timings.shares(), "all")
    took.add_row("seconds", *(f"{some:.1f}" for some, _ in timings.shares().values()), f"{timings.total:.1f}")
    took.add_row("share", *(f"{share:.0%}" for _, share in timings.shares().values()), "")
    console.print(took)
    console.print(
        f"metrics.json, predictions.csv and errors.html are in {results.folder}", markup=False, highlight=False
    )
