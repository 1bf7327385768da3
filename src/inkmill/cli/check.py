"""`inkmill check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inkmill.cli.options import SpecFile, arguments, load, make_console, split
from inkmill.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

    from inkmill.config.spec import Spec
    from inkmill.data.jobs.check_report import CheckReport
    from inkmill.data.sources import Source
    from inkmill.tasks.recognition.charset import Charset


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
        sources = _open(loaded, console)
        reports = _check(loaded, sources, console)
        write_page(results.folder / "check.html", reports, sources)
        write_json_atomic(results.folder / "check.json", {name: report.as_dict() for name, report in reports.items()})
    _show(console, reports)
    console.print(f"check.html and check.json are in {results.folder}", markup=False, highlight=False)
    if any(report.lost_share > loaded.dataset.max_lost for report in reports.values()):
        raise typer.Exit(1)


def _open(spec: Spec, console: Console) -> dict[str, Source]:
    """Open the sets, those of training first."""
    from inkmill.data.sources import open_source

    wanted = [*spec.dataset.sources("train"), *spec.dataset.sources("val")]
    if not wanted:
        raise ConfigError("check needs a data set: give its PATH, or dataset.train in the spec")
    sources: dict[str, Source] = {}
    for one in wanted:
        source = open_source(one, label_pattern=spec.dataset.label_pattern)
        if len(source) == 0:
            raise DataError(f"{one.path}: the data set is empty; expected images with labels")
        for note in source.notes:
            console.print(f"{source.name}: {note}", markup=False, highlight=False)
        taken = source.name in sources
        sources[f"{source.name} ({one.path})" if taken else source.name] = source
    return sources


def _check(spec: Spec, sources: dict[str, Source], console: Console) -> dict[str, CheckReport]:
    from inkmill.cli.progress import progress_bar
    from inkmill.data.jobs.check import check as run
    from inkmill.training.prepare import CHECKED_HERE, check_rules

    rules = check_rules(spec, _charset(spec, list(sources.values())[: len(spec.dataset.sources("train"))]))
    if rules.capacity is None:
        console.print("torch is not installed: whether pictures are too narrow for their labels is not checked")
    reports: dict[str, CheckReport] = {}
    for name, source in sources.items():
        workers = spec.dataset.workers if len(source) > CHECKED_HERE else 0
        with progress_bar(console, f"checking {name}") as progress:
            reports[name] = run(source, rules, workers=workers, progress=progress)
    return reports


def _charset(spec: Spec, trained_on: list[Source]) -> Charset:
    from inkmill.tasks.recognition.charset import Charset
    from inkmill.tasks.recognition.normalise import Normaliser
    from inkmill.training.prepare import texts_of

    if spec.dataset.character_list_file:
        return Charset.from_file(spec.dataset.character_list_file)
    normaliser = Normaliser(spec.dataset.normalise)
    return Charset.from_texts(normaliser.apply(text) for source in trained_on for text in texts_of(source))


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
