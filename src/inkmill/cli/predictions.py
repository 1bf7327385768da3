"""Predictions as a table for people, as CSV, TSV or JSON lines for programs; on the screen or in a file.

CSV, TSV and JSON lines go out, always as UTF-8, while reading continues: a pipe sees the first lines after one batch.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inkmill.cli.options import visible
from inkmill.errors import OutputError
from inkmill.files import atomic_path, explain, open_data
from inkmill.tasks.base import Prediction

_UNCUT = 1_000_000
"""Columns of a table that no terminal shows."""
_CORNER = "\u250f"
"""What a table begins with."""
_ENDS = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""What would end a cell of a TSV, which only names of files can hold."""
_NAMES = "backslashreplace"  # a file name need not be valid Unicode, and must not cost the other predictions


def write_predictions(
    predictions: Iterable[Prediction],
    fields: Sequence[str],
    kind: str,
    output: Path | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write predictions to a file, or to the standard output.

    Args:
        predictions: any number of them.
        fields: the keys of `Prediction.as_dict`: the columns after the file's.
        kind: table, csv (file,text,confidence for a text reader), tsv (the same between TABs, nothing quoted) or jsonl
            (one object with the same keys a line).
        output: the file; it is written whole or not at all.
        overwrite: replace a file that holds something else than predictions.

    Raises:
        OutputError: the file cannot be written, or is not one of this function's.
    """
    if output is not None:
        _check_place(output, fields, overwrite)
    if output is None:
        sys.stdout.flush()
        if isinstance(sys.stdout, io.TextIOWrapper) and kind != "table":
            sys.stdout.reconfigure(encoding="utf-8", errors=_NAMES)
        shown = kind != "table" and sys.stdout.isatty()
        _write(predictions, fields, kind, cast(TextIO, _Shown()) if shown else sys.stdout)
        return
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8", errors=_NAMES, newline="") as file:
        _write(predictions, fields, kind, file)


def _write(predictions: Iterable[Prediction], fields: Sequence[str], kind: str, file: TextIO) -> None:
    write = {"table": _write_table, "csv": _write_csv, "tsv": _write_tsv, "jsonl": _write_jsonl}[kind]
    write(predictions, fields, file)


class _Shown:
    """The terminal, in whose lines nothing moves the cursor; a file or a pipe gets names as they are."""

    def write(self, text: str) -> int:
        return sys.stdout.write(visible(text))


def _check_place(output: Path, fields: Sequence[str], overwrite: bool) -> None:
    """Refuse to replace what was not written by this file, as a label file of the user's, which would be lost."""
    if not output.exists():
        return
    try:
        with open_data(output) as file:
            head = file.readline(4096)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {explain(error)}") from error
    names = ("file", *fields)
    begins = (",".join(names), "\t".join(names), '{"file": ', _CORNER)
    ours = any(head.startswith(begin.encode()) for begin in begins)
    if head and not ours and not overwrite:
        raise OutputError(
            f"{output} is there, and holds no predictions: name another file, or replace it with --overwrite"
        )


def _write_table(predictions: Iterable[Prediction], fields: Sequence[str], file: TextIO) -> None:
    table = Table()
    for name in ("file", *fields):
        table.add_column(name, overflow="fold", justify="right" if name == "confidence" else "left")
    for prediction in predictions:  # as Text: a label such as [red] is not markup
        cells = map(_cell, prediction.as_dict().values())
        table.add_row(Text(visible(prediction.key)), *map(Text, map(visible, cells)))
    Console(file=file, width=None if file.isatty() else _UNCUT).print(table)


def _write_csv(predictions: Iterable[Prediction], fields: Sequence[str], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("file", *fields))
    for prediction in predictions:
        writer.writerow((prediction.key, *map(_cell, prediction.as_dict().values())))


def _write_tsv(predictions: Iterable[Prediction], fields: Sequence[str], file: TextIO) -> None:
    file.write("\t".join(("file", *fields)) + "\n")
    for prediction in predictions:
        cells = (prediction.key, *map(_cell, prediction.as_dict().values()))
        file.write("\t".join(cell.translate(_ENDS) for cell in cells) + "\n")


def _write_jsonl(predictions: Iterable[Prediction], fields: Sequence[str], file: TextIO) -> None:
    for prediction in predictions:
        file.write(json.dumps({"file": prediction.key, **prediction.as_dict()}, ensure_ascii=False) + "\n")


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
