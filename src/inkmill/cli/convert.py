"""`inkmill convert` (TAO: dataset_convert)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inkmill.cli.options import SpecFile, arguments, load, make_console, split
from inkmill.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from inkmill.config.spec import Spec
    from inkmill.data.jobs.convert import ConvertReport


def convert(
    given: Annotated[
        list[str] | None,
        arguments("SOURCE DESTINATION | ", "A data set in any format `check` knows, and where the converted one goes."),
    ] = None,
    spec: SpecFile = None,
    to: Annotated[
        str, typer.Option("--to", metavar="KIND", help="lmdb, shards, or a label format: csv, tsv ...")
    ] = "lmdb",
    crop: Annotated[
        bool, typer.Option("--crop", help="Of a set of pages: cut each labelled region out, with its text.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Processes that decode.", show_default="CPUs")
    ] = None,
) -> None:
    """Convert a data set; every image is decoded once, and bad ones are copied aside with the reason.

    Without SOURCE and DESTINATION the keys of dataset_convert are used, as TAO does.
    """
    from inkmill.config.dataset import SourceSpec
    from inkmill.config.load import require

    positional, overrides = split(given)
    if len(positional) not in (0, 2):
        raise ConfigError("convert takes SOURCE and DESTINATION, or neither of them and the keys of dataset_convert")
    places = dict(zip(("dataset_convert__input_img_dir", "dataset_convert__results_dir"), positional, strict=False))
    loaded = load(spec, overrides, **places)
    wanted = SourceSpec(
        path=require(loaded, "dataset_convert.input_img_dir", "convert"),
        gt_file=loaded.dataset_convert.gt_file or None,
        format=loaded.dataset_convert.format,
    )
    destination = Path(loaded.dataset_convert.results_dir or Path(loaded.results_dir) / "dataset_convert" / "lmdb")

    from inkmill.cli.progress import progress_bar
    from inkmill.data.jobs.convert import convert as run
    from inkmill.data.sources import CropSource, open_source

    console = make_console()
    with _results(loaded, destination, bool(positional)):
        source = open_source(wanted, label_pattern=loaded.dataset.label_pattern)
        if crop:
            source = CropSource(source)
        with progress_bar(console, "converting") as progress:
            report = run(source, destination, kind=to, workers=workers, overwrite=overwrite, progress=progress)
    _show(console, report)


def _results(spec: Spec, destination: Path, by_position: bool) -> AbstractContextManager[object]:
    """Return the results folder of a run by spec file; `convert a b` leaves nothing but b."""
    from inkmill.config.results import open_results

    folder = Path(spec.results_dir) / "dataset_convert"
    return nullcontext() if by_position or folder == destination else open_results(spec, "convert", folder=folder)


def _show(console: Console, report: ConvertReport) -> None:
    for line in (*report.notes, str(report)):
        console.print(line, markup=False, highlight=False)
