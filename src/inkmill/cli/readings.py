"""Readings as a table for people, as CSV or as JSON lines for programs; on the screen or in a file.

CSV and JSON lines go out, always as UTF-8, while the reading goes on: a pipe sees the first lines after one batch.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inkmill.files import atomic_path
from inkmill.runtime.reader import Reading

_UNCUT = 1_000_000
"""Columns of a table that no terminal shows."""
_NAMES = "backslashreplace"  # a file name need not be valid Unicode, and must not cost the other readings


def write_readings(readings: Iterable[Reading], kind: str, output: Path | None = None) -> None:
    """Write readings to a file, or to the standard output.

    Args:
        readings: any number of them.
        kind: table, csv (file,text,confidence) or jsonl (one {"file", "text", "confidence"} a line).
        output: the file; it is written whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    if output is None:
        sys.stdout.flush()
        if isinstance(sys.stdout, io.TextIOWrapper) and kind != "table":
            sys.stdout.reconfigure(encoding="utf-8", errors=_NAMES)
        _write(readings, kind, sys.stdout)
        return
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8", errors=_NAMES, newline="") as file:
        _write(readings, kind, file)


def _write(readings: Iterable[Reading], kind: str, file: TextIO) -> None:
    {"table": _write_table, "csv": _write_csv, "jsonl": _write_jsonl}[kind](readings, file)


def _write_table(readings: Iterable[Reading], file: TextIO) -> None:
    table = Table()
    for name in ("file", "text"):
        table.add_column(name, overflow="fold")
    table.add_column("confidence", justify="right")
    for reading in readings:  # as Text: a label such as [red] is not markup
        table.add_row(Text(reading.key), Text(reading.text), f"{reading.confidence:.4f}")
    Console(file=file, width=None if file.isatty() else _UNCUT).print(table)


def _write_csv(readings: Iterable[Reading], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("file", "text", "confidence"))
    for reading in readings:
        writer.writerow((reading.key, reading.text, f"{reading.confidence:.4f}"))


def _write_jsonl(readings: Iterable[Reading], file: TextIO) -> None:
    for reading in readings:
        row = {"file": reading.key, "text": reading.text, "confidence": round(float(reading.confidence), 4)}
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
