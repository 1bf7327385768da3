"""CSV tables of classes: one column a class with 0 and 1, or one column a task that names its class (TAO).

`Path,cat,dog` with rows `a.jpg,1,0`: an empty cell and -1 are unknown, as in CheXpert; a row of zeros shows nothing.
`fname,colour,shape` with rows `a.jpg,red,round`: the classes are `colour=red` and `shape=round`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import raw_lines, write_lines
from inkmill.data.types import Labels, Target
from inkmill.errors import DataError, LabelFileError

_IMAGE_COLUMNS = ("path", "image_name", "image", "file_name", "filename", "fname", "image_id")
_CELLS = {"1": 1, "1.0": 1, "0": 0, "0.0": 0, "": -1, "-1": -1, "-1.0": -1}
"""Present, absent, unknown."""


def _rows(path: Path) -> Iterator[tuple[list[str], int]]:
    """Yield the rows of a CSV file with the line each begins on; the first is the header."""
    rows = csv.reader((line for _, line in raw_lines(path)), strict=True)
    line, width = 1, None
    try:
        for row in rows:
            if row:
                width = width or len(row)
                if len(row) != width:
                    raise LabelFileError(f"expected {width} columns and found {len(row)}", path, line)
                yield row, line
            line = rows.line_num + 1
    except csv.Error as error:
        raise LabelFileError(f"not valid CSV: {error}", path, line) from None


def _fields(line: str) -> list[str]:
    """Return the cells of a line; none where it is no CSV, as lines of other formats may be that detection tries."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


@register
class CsvOneHot(LabelFormat):
    """A table whose first column names an image and whose other columns are classes: 1, 0, and -1 or nothing."""

    name: ClassVar[str] = "csv_one_hot"
    title: ClassVar[str] = "classification: CSV with a column of 0 and 1 for each class"
    example: ClassVar[str] = "path,cat,dog / a.jpg,1,0"
    specificity: ClassVar[int] = 44
    file_name: ClassVar[str] = "classes.csv"
    names_folder: ClassVar[bool] = True

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; every cell that was looked at must be one of 1, 0, -1 and nothing."""
        header = _fields(head[0]) if head else []
        rows = [_fields(line) for line in head[1:]]
        good = len(header) > 1 and bool(rows) and all(len(row) == len(header) for row in rows)
        if not good or header[0].strip().lower() not in _IMAGE_COLUMNS:
            return None
        cells = {cell.strip() for row in rows for cell in row[1:]}
        return f"its {len(header) - 1} other columns hold 0 and 1" if cells <= _CELLS.keys() and "1" in cells else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; the targets are `Labels`."""
        rows = _rows(path)
        header, _ = next(rows, ([], 0))
        classes = [name.strip() for name in header[1:]]
        if not classes or not all(classes) or len(set(classes)) != len(classes):
            raise LabelFileError("the header must name an image column and each class once", path, 1)
        for row, line in rows:
            if not row[0]:
                raise LabelFileError("the image name is empty", path, line)
            yield Entry(row[0], self._labels(classes, row[1:], path, line), line)

    @staticmethod
    def _labels(classes: list[str], cells: list[str], path: Path, line: int) -> Labels:
        found: dict[int, list[str]] = {1: [], 0: [], -1: []}
        for name, cell in zip(classes, cells, strict=True):
            value = _CELLS.get(cell.strip())
            if value is None:
                raise LabelFileError(f"expected 1, 0, -1 or nothing for {name!r} and found {cell!r}", path, line)
            found[value].append(name)
        return Labels(tuple(found[1]), tuple(found[-1]))

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; all entries are held until the classes are known."""
        held = list(entries)
        for entry in held:
            if refusal := self.refuses(entry.image, entry.target):
                raise DataError(f"{entry.image!r} cannot be written in the format {self.name!r}: {refusal}")
        targets = [entry.target for entry in held if isinstance(entry.target, Labels)]
        classes = sorted({name for target in targets for name in (*target.names, *target.unknown)})
        write_lines(path, _csv_lines(held, targets, classes))

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`; a line of the file is one image."""
        if not isinstance(target, Labels):
            return "csv_one_hot holds class names, not texts"
        names = (image, *target.names, *target.unknown)
        if any(name != name.strip() or not name for name in names):
            return "a name is empty, or begins or ends with a blank"
        return next((refusal for name in names if (refusal := unwritable(name, "\r\n\0", "name"))), None)


def _csv_lines(entries: list[Entry], targets: list[Labels], classes: list[str]) -> Iterator[str]:
    def line(cells: Iterable[str]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue().removesuffix("\n")

    yield line(("path", *classes))
    for entry, target in zip(entries, targets, strict=True):
        shown, unknown = set(target.names), set(target.unknown)
        yield line((entry.image, *("1" if c in shown else "-1" if c in unknown else "0" for c in classes)))


@register
class CsvMultitask(LabelFormat):
    """TAO's multitask classification: `fname`, then one column a task, whose cells name the class of that task."""

    name: ClassVar[str] = "csv_multitask"
    title: ClassVar[str] = "classification: TAO's multitask CSV, a class for each task column"
    example: ClassVar[str] = "fname,colour,shape / a.jpg,red,round"
    specificity: ClassVar[int] = 43
    file_name: ClassVar[str] = "multitask.csv"

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; TAO's header begins with fname."""
        header = _fields(head[0]) if head else []
        tasks = header[1:] if header[:1] == ["fname"] else []
        return f"its header is fname and {len(tasks)} tasks" if tasks else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; a class is `task=name`, an empty cell is a task whose class is unknown."""
        rows = _rows(path)
        header, _ = next(rows, ([], 0))
        tasks = [name.strip() for name in header[1:]]
        if header[:1] != ["fname"] or not tasks or not all(tasks):
            raise LabelFileError("expected a header of fname and the tasks", path, 1)
        everything: dict[str, set[str]] = {task: set() for task in tasks}
        held = list(rows)  # an unknown class of a task stands for all of its classes, which the end of the file knows
        for row, _ in held:
            for task, cell in zip(tasks, row[1:], strict=True):
                if cell.strip():
                    everything[task].add(f"{task}={cell.strip()}")
        for row, line in held:
            if not row[0]:
                raise LabelFileError("the image name is empty", path, line)
            cells = [(task, cell.strip()) for task, cell in zip(tasks, row[1:], strict=True)]
            names = tuple(f"{task}={cell}" for task, cell in cells if cell)
            unknown = tuple(name for task, cell in cells if not cell for name in sorted(everything[task]))
            yield Entry(row[0], Labels(names, unknown), line)

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`: this format is read only."""
        return "csv_multitask is read, not written: csv_one_hot holds the same"
