"""`inkmill bench`: throughput that anyone can measure again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from inkmill.bench.run import BenchRow, BenchSettings


def bench(
    what: Annotated[Literal["loaders"], typer.Argument(help="What is measured.", metavar="loaders")],
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="Your data; without it JPEG word crops are rendered.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="How many crops to render.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=0.01, help="Measuring time a row; warm-up comes on top.")] = 5.0,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes or threads; by default the cores.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 256,
    only: Annotated[str, typer.Option(metavar="NAME,...", help="Only these loaders or engines.")] = "",
    augment: Annotated[
        Literal["none", "strong"] | None, typer.Option(help="Only the rows with this augmentation.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Also write the rows as JSON.")] = None,
) -> None:
    """Measure every loader of inkmill beside the classic torch DataLoader, in one run on this machine.

    The exit code is 1 when a loader failed that should have run.
    """
    from inkmill.bench.run import BenchSettings, default_device
    from inkmill.machine import cores, machine_stamp

    names = tuple(name.strip() for name in only.split(",") if name.strip())
    workers = cores() if workers is None else workers
    settings = BenchSettings(path, images, seconds, workers, batch_size, names, default_device(), augment)
    machine = machine_stamp()  # before the run, whose own load it would show
    rows = _measure(settings, machine, json)
    _show(rows, settings, machine)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def _measure(settings: BenchSettings, machine: dict[str, Any], json: str | None) -> list[BenchRow]:
    """Measure; each row is printed and written at once, for a run of minutes may be interrupted."""
    from pathlib import Path

    from rich.console import Console

    from inkmill.bench.run import as_json, run
    from inkmill.files import write_json_atomic

    rows = []
    console = Console(stderr=True)
    with console.status("preparing the data"):
        for row in run(settings):
            rows.append(row)
            speed = "-" if row.images_per_s is None else f"{row.images_per_s:,.0f} images/s"
            console.print(f"{row.loader}, {row.engine}, cache {row.cache}, augment {row.augment}: {speed}")
            if json is not None:
                write_json_atomic(Path(json), as_json(rows, settings, machine))
    return rows


def _show(rows: list[BenchRow], settings: BenchSettings, machine: dict[str, Any]) -> None:
    from rich.console import Console

    from inkmill.bench.run import as_table
    from inkmill.machine import stamp_line

    title = f"{stamp_line(machine)}; {settings.workers} workers, batches of {settings.batch_size}"
    Console().print(as_table(rows, title))
