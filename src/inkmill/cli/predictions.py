"""Predictions as a table for people, as CSV or as JSON lines for programs; on the screen or in a file.

CSV and JSON lines go out, always as UTF-8, while reading continues: a pipe sees the first lines after one batch.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inkmill.files import atomic_path
from inkmill.tasks.base import Prediction

_UNCUT = 1_000_000
"""Columns of a table that no terminal shows."""
_NAMES = "backslashreplace"  # a file name need not be valid Unicode, and must not cost the other predictions


def write_predictions(
    predictions: Iterable[Prediction], fields: Sequence[str], kind: str, output: Path | None = None
) -> None:
    """Write predictions to a file, or to the standard output.

    Args:
        predictions: any number of them.
        fields: the keys of `Prediction.as_dict`: the columns after the file's.
        kind: table, csv (file,text,confidence for a text reader) or jsonl (one object with the same keys a line).
        output: the file; it is written whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    if output is None:
        sys.stdout.flush()
        if isinstance(sys.stdout, io.TextIOWrapper) and kind != "table":
            sys.stdout.reconfigure(encoding="utf-8", errors=_NAMES)
        _write(predictions, fields, kind, sys.stdout)
        return
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8", errors=_NAMES, newline="") as file:
        _write(predictions, fields, kind, file)


def _write(predictions: Iterable[Prediction], fields: Sequence[str], kind: str, file: TextIO) -> None:
    {"table": _write_table, "csv": _write_csv, "jsonl": _write_jsonl}[kind](predictions, fields, file)


def _write_table(predictions: Iterable[Prediction], fields: Sequence[str], file: TextIO) -> None:
    table = Table()
    for name in ("file", *fields):
        table.add_column(name, overflow="fold", justify="right" if name == "confidence" else "left")
    for prediction in predictions:  # as Text: a label such as [red] is not markup
        cells = map(_cell, prediction.as_dict().values())
        table.add_row(Text(prediction.key), *map(Text, cells))
    Console(file=file, width=None if file.isatty() else _UNCUT).print(table)


def _write_csv(predictions: Iterable[Prediction], fields: Sequence[str], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("file", *fields))
    for prediction in predictions:
        writer.writerow((prediction.key, *map(_cell, prediction.as_dict().values())))


def _write_jsonl(predictions: Iterable[Prediction], fields: Sequence[str], file: TextIO) -> None:
    for prediction in predictions:
        file.write(json.dumps({"file": prediction.key, **prediction.as_dict()}, ensure_ascii=False) + "\n")


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
