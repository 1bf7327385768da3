"""What the verbs of this room have in common: where they write, the history in the header, lines and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from inkmill.config.spec import Spec
from inkmill.errors import ConfigError
from inkmill.files import write_text_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step, write_model_card
from inkmill.runtime.speed import BATCHES

MEASURED = ("scores", "speeds")
"""Entries of a header's provenance that are not true of a model with other arithmetic or other weights."""


def output_path(key: str, wanted: str | None, source: Path, default: str, suffixes: tuple[str, ...] = ()) -> Path:
    """Return the file to write: what the spec wants, else `default` beside the source.

    Args:
        key: of the spec, for errors.
        wanted: its value.
        source: the model that is read.
        default: the name where nothing is wanted.
        suffixes: how the name may end; any way by default.

    Raises:
        ConfigError: another suffix, or the source itself.
    """
    path = Path(wanted) if wanted else source.with_name(default)
    if suffixes and path.suffix not in suffixes:  # the other verbs tell models by their suffix
        raise ConfigError(f"{key}={path}: expected a name that ends in {' or '.join(suffixes)}")
    if path.resolve() == source.resolve():
        raise ConfigError(f"{key}={path} is the model itself, which would be lost: give another name")
    return path


def exported(spec: Spec, model: Path, path: Path, console: Console) -> Path:
    """Return `path`, to which a model of `train` was exported; the figures go to `export/` beside it."""
    from inkmill.deploy.export.run import export

    places = {"checkpoint": str(model), "onnx_file": str(path), "results_dir": str(path.parent / "export")}
    return export(spec.model_copy(update={"export": spec.export.model_copy(update=places)}), console=console)


def with_step(
    header: ModelHeader, verb: str, source: Path, forget: tuple[str, ...] = MEASURED, **facts: Any
) -> ModelHeader:
    """Return the header with one more step in its history.

    Args:
        header: of the model that was read.
        verb: what was done.
        source: its file.
        forget: entries of the provenance that are not true any more.
        facts: what the history says of the step.
    """
    kept = {name: value for name, value in header.provenance.items() if name not in forget}
    made = [*header.history(), step(verb, source=source.name, **facts)]
    return header.model_copy(update={"provenance": {**kept, "made": made}})


def write_companions(path: Path, header: ModelHeader) -> None:
    """Write the model card beside a file, and the characters of a text reader, one a line, as nvOCDR takes them."""
    write_model_card(path, header)
    characters = header.open_task().metadata().get("character")
    if characters is not None:
        write_text_atomic(path.with_name(f"{path.name}.characters.txt"), f"{characters}\n")


def print_line(console: Console, line: str) -> None:
    """Print a line as it is: paths and numbers stay uncoloured, and brackets are no markup."""
    console.print(line, highlight=False, markup=False)


def mebibytes(path: Path) -> str:
    """Return a file's size as "1.4 MiB"."""
    return f"{path.stat().st_size / 2**20:.1f} MiB"


def comparison_table(*headings: str) -> Table:
    """Return an empty table whose first column names what is compared."""
    table = Table("", title=None)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def speed_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row of images/s for each batch size: median (least-most) before and after, and the ratio."""
    for batch in BATCHES:
        if f"batch_{batch}" not in before["images_per_second"]:
            continue
        speeds = [side["images_per_second"][f"batch_{batch}"] for side in (before, after)]
        shown = [f"{speed['median']:,.0f} ({speed['least']:,.0f}-{speed['most']:,.0f})" for speed in speeds]
        yield f"images/s, batch {batch}", *shown, f"{speeds[1]['median'] / speeds[0]['median']:.2f}"
