"""`inkmill check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from inkmill.cli.options import SpecFile, arguments, load, make_console, split
from inkmill.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from inkmill.config.spec import Spec
    from inkmill.data.jobs.check import SampleRules
    from inkmill.data.jobs.check_report import CheckReport
    from inkmill.data.sources import Source

_LINE_SHAPE = 5.0
"""Median of width over height from which on pictures are rather lines than words."""


def check(
    given: Annotated[list[str] | None, arguments("PATH | ", "The sets; without any, those of the spec.")] = None,
    spec: SpecFile = None,
) -> None:
    """Show what training would use of a data set, and what not and why, on one page.

    Leaves check.html and check.json in results/check. The exit code is 1 when more than dataset.max_lost of a set
    would be lost, which is when `train` refuses to start.
    """
    from inkmill.config.results import open_results
    from inkmill.data.jobs.check_page import write_page
    from inkmill.files import write_json_atomic

    paths, overrides = split(given)
    loaded = load(spec, overrides, dataset__train=paths)
    if paths:
        loaded.dataset.val, loaded.dataset.val_dataset_dir = [], []
    console = make_console()
    with open_results(loaded, "check") as results:
        sources, reports, rules = _check(loaded, console)
        write_page(results.folder / "check.html", reports, sources, rules)
        write_json_atomic(results.folder / "check.json", {name: report.as_dict() for name, report in reports.items()})
    _show(console, reports)
    for line in _leaks(sources, reports, loaded):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for name, report in reports.items():
        for line in _advice(sources[name], report, loaded):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"check.html and check.json are in {results.folder}", markup=False, highlight=False)
    if any(report.lost_share > loaded.dataset.max_lost for report in reports.values()):
        raise typer.Exit(1)


def _check(spec: Spec, console: Console) -> tuple[dict[str, Source], dict[str, CheckReport], SampleRules]:
    from inkmill.cli.progress import progress_bar
    from inkmill.data.jobs.check import check as run
    from inkmill.data.sources import fresh_name
    from inkmill.training.prepare import CHECKED_HERE, open_sets, settle

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    train, val = open_sets(spec, "train", say), open_sets(spec, "val", say)
    if not train and not val:
        raise ConfigError("check needs a data set: give its PATH, or dataset.train in the spec")
    rules = settle(spec, train or val, say).rules()
    for note in rules.notes:
        say(note)
    sources: dict[str, Source] = {}
    reports: dict[str, CheckReport] = {}
    for source in [*train, *val]:
        name = fresh_name(source.name, sources)
        workers = spec.dataset.workers if len(source) > CHECKED_HERE else 0
        with progress_bar(console, f"checking {name}") as progress:
            sources[name], reports[name] = source, run(source, rules, workers=workers, progress=progress)
    return sources, reports, rules


def _leaks(sources: dict[str, Source], reports: dict[str, CheckReport], spec: Spec) -> Iterator[str]:
    """Yield what of the validation images is also among the training images; without a validation set, would be."""
    import numpy as np

    from inkmill.data.sources import holdout
    from inkmill.errors import DataError

    names = list(reports)
    train = names[: len(spec.dataset.sources("train"))]
    for val in names[len(train) :]:
        for one in train:
            for pairs, what in (
                (reports[val].across(reports[one]), "are also in"),
                (reports[val].alike(reports[one]), "look like images of"),
            ):
                if len(pairs):
                    here, there = sources[val].key(int(pairs[0, 0])), sources[one].key(int(pairs[0, 1]))
                    yield f"{val}: {len(pairs):,} images {what} {one}, e.g. {here} and {there}"
    for one in train if len(train) == len(names) else ():
        try:
            kept, held = holdout(sources[one], spec.dataset.val_fraction)
        except DataError:  # too few to hold some out, as `train` will say
            continue
        outside, inside = reports[one].part(held), reports[one].part(kept)
        pairs = np.concatenate([outside.across(inside), outside.alike(inside)])
        if len(pairs):
            here, there = sources[one].key(int(held[pairs[0, 0]])), sources[one].key(int(kept[pairs[0, 1]]))
            yield (
                f"{one}: {len(pairs):,} of {len(held):,} images that would be held out for validation are copies of "
                f"others or look like them, e.g. {here} and {there}: their scores would flatter"
            )


def _advice(source: Source, report: CheckReport, spec: Spec) -> list[str]:
    """Return what to try where labels are too long for a reason that can be seen."""
    import shlex

    import numpy as np

    from inkmill.data.formats.filename import DEFAULT_PATTERN, propose_pattern

    long = report.counts.get("over_length", 0)
    names = [source.key(index) for index in range(min(len(source), 1000))]
    lines = []
    if source.label_pattern == DEFAULT_PATTERN and 2 * long > len(source) and (pattern := propose_pattern(names)):
        setting = f"dataset.label_pattern={shlex.quote(pattern)}"
        lines.append(f"{source.name}: names hold more than labels, as {names[0]} does; {setting} takes the first part")
    elif long + report.counts.get("too_narrow", 0) > spec.dataset.max_lost * len(source):
        known = report.sizes[report.sizes[:, 1] > 0]
        shape = float(np.median(known[:, 0] / known[:, 1])) if len(known) else 0.0
        if shape >= _LINE_SHAPE:
            lines.append(
                f"{source.name}: its pictures are {shape:.0f} times as wide as high, as lines of text are: the preset "
                "for them is -e line"
            )
    return lines


def _show(console: Console, reports: dict[str, CheckReport]) -> None:
    from rich.table import Table

    reasons = sorted({reason for report in reports.values() for reason in report.counts})
    table = Table("set")
    for heading in ("samples", "used", *(reason.replace("_", " ") for reason in reasons), "repeated files"):
        table.add_column(heading, justify="right")
    for name, report in reports.items():
        counts = (len(report), len(report.keep), *(report.counts.get(reason, 0) for reason in reasons))
        table.add_row(name, *(f"{count:,}" for count in (*counts, len(report.duplicates))))
    console.print(table)
    for name, report in reports.items():
        for reason, found in report.dropped.items():
            console.print(
                f"{name}: {reason.replace('_', ' ')}: {found[0].key}: {found[0].detail}", markup=False, highlight=False
            )
