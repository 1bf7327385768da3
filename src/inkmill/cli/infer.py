"""`inkmill infer`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inkmill.cli.options import SpecFile, arguments, load, split_model, visible


class Format(StrEnum):
    """How readings are printed."""

    table = "table"
    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"


def infer(
    given: Annotated[
        list[str] | None,
        arguments(
            "MODEL | IMAGE | ",
            "The model (without one: the package's own reader), then images: files, folders, globs, @list.txt.",
        ),
    ] = None,
    spec: SpecFile = None,
    kind: Annotated[
        Format | None,
        typer.Option("--format", help="Default: by the suffix of -o, else a table.", show_default=False),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write here, whole or not at all.")] = None,
    draw: Annotated[
        Path | None, typer.Option("--draw", help="Of a detector: write pictures with their regions drawn in here.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FILE even if it holds no predictions.")
    ] = False,
) -> None:
    """Read images: the text of each, and a confidence from 0 to 1.

    The exit code is 1 when an image could not be read; the others are.
    """
    model, images, overrides = split_model(given)
    loaded = load(spec, overrides, inference__checkpoint=model)
    if loaded.inference.trt_engine:
        typer.echo("inkmill: inference.trt_engine has no effect here: inference.checkpoint is what reads", err=True)

    from inkmill.cli.predictions import write_predictions
    from inkmill.runtime.infer import infer as run

    problems: list[str] = []
    fields, predictions = run(
        loaded,
        images,
        problems=problems,
        say=lambda line: typer.echo(f"inkmill: {visible(line)}", err=True),
        draw=draw,
    )
    write_predictions(predictions, fields, kind or _by_suffix(output), output, overwrite=overwrite)
    for problem in problems:
        typer.echo(f"inkmill: {visible(problem)}", err=True)
    if problems:
        raise typer.Exit(1)


def _by_suffix(output: Path | None) -> Format:
    known = {".csv": Format.csv, ".tsv": Format.tsv, ".jsonl": Format.jsonl, ".ndjson": Format.jsonl}
    return known.get(output.suffix.lower(), Format.table) if output else Format.table
