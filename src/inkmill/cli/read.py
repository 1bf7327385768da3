"""`inkmill read`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inkmill.cli.options import make_console


def read(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE|FOLDER|-", help="Pictures, PDFs, folders of them; - is the standard input."),
    ],
    formats: Annotated[
        str,
        typer.Option(
            "--format", help="text, json, hocr, alto, page, tsv, pdf, picture; with --output several: text,json."
        ),
    ] = "text",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for the results; without it they go to the standard output."),
    ] = None,
    detector: Annotated[
        Path | None, typer.Option("--detector", help="ONNX file that finds text; default: inkmill's own.")
    ] = None,
    reader: Annotated[
        Path | None, typer.Option("--reader", help="ONNX file that reads lines; default: inkmill's own.")
    ] = None,
    dpi: Annotated[float, typer.Option(help="At which the pages of PDFs are drawn.", min=50, max=1200)] = 200,
    max_pages: Annotated[int, typer.Option(help="Refuse documents with more pages.", min=1)] = 10_000,
    threads: Annotated[int | None, typer.Option(help="Default: one a core.", min=1)] = None,
    again: Annotated[bool, typer.Option("--again", help="Read what has its results in --output already, too.")] = False,
) -> None:
    """Read pages: all the text of pictures and PDFs, with its place.

    A page that cannot be read is named, and the others are read: the exit code is then 1. Started again with the same
    --output folder, what is done is not read twice.
    """
    from inkmill.cli.progress import progress_bar
    from inkmill.pages.jobs import ReadJob
    from inkmill.pages.reader import PageReader

    job = ReadJob(files, formats, output, dpi=dpi, max_pages=max_pages, again=again)
    with progress_bar(make_console(error=True), "pages") as move:
        job.run(lambda: PageReader(detector, reader, threads=threads), move)
    for line in job.report():
        typer.echo(f"inkmill: {line}", err=True)
    if job.problems:
        raise typer.Exit(1)
