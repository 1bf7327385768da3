"""`inkmill bench`: figures that anyone can repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from inkmill.bench.run import Row, Settings


def bench(
    what: Annotated[Literal["loaders"], typer.Argument(help="What is measured.", metavar="loaders")],
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="Your data; without it JPEG word crops are rendered.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="How many crops to render.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=0.01, help="Measuring time a row; warm-up comes on top.")] = 5.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes or threads; by default the cores.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 256,
    only: Annotated[str, typer.Option(metavar="NAME,...", help="Only these loaders or engines.")] = "",
    augment: Annotated[
        Literal["none", "strong"] | None, typer.Option(help="Only the rows with this augmentation.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Also write the rows as JSON.")] = None,
    chart: Annotated[str | None, typer.Option(metavar="FILE", help="Also draw the rows as a bar chart (PNG).")] = None,
) -> None:
    """Measure every loader of inkmill beside what one would write otherwise, in one run on this machine.

    The exit code is 1 when a loader that should have run broke.
    """
    from inkmill.bench.run import Settings, default_device
    from inkmill.machine import cores, machine_stamp

    names = tuple(name.strip() for name in only.split(",") if name.strip())
    settings = Settings(path, images, seconds, workers or cores(), batch_size, names, default_device(), augment)
    machine = machine_stamp()  # before the run, whose own load it would show
    rows = _measure(settings, machine, json)
    _show(rows, settings, machine, chart)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def _measure(settings: Settings, machine: dict[str, Any], json: str | None) -> list[Row]:
    """Measure; each row is said and written as soon as it is there, for a run of minutes may be cut short."""
    from rich.console import Console

    from inkmill.bench.run import run
    from inkmill.bench.show import write_json

    rows = []
    console = Console(stderr=True)
    with console.status("preparing the data"):
        for row in run(settings):
            rows.append(row)
            speed = "-" if row.images_per_s is None else f"{row.images_per_s:,.0f} images/s"
            console.print(f"{row.loader}, {row.engine}, keep {row.cache}, augment {row.augment}: {speed}")
            if json is not None:
                write_json(json, rows, settings, machine)
    return rows


def _show(rows: list[Row], settings: Settings, machine: dict[str, Any], chart: str | None) -> None:
    from rich.console import Console

    from inkmill.bench.show import as_table, write_chart
    from inkmill.machine import stamp_line

    title = f"{stamp_line(machine)}; {settings.workers} workers, batches of {settings.batch_size}"
    Console().print(as_table(rows, title))
    if chart is not None:
        write_chart(chart, rows, title)
