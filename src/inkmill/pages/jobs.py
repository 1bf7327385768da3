"""A job over many documents: which files, which are done, what goes where, and what went wrong.

A document's results are written when its last page is read, whole or not at all; so what exists is done, and a job
that was stopped goes on where it was. A page that cannot be read is listed; the others of its document are written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from inkmill.errors import ConfigError, DataError
from inkmill.files import atomic_path
from inkmill.pages.documents import MAX_BYTES, SUFFIXES, Document
from inkmill.pages.outputs import FORMATS
from inkmill.pages.pdf import DPI
from inkmill.pages.reader import PageReader
from inkmill.pages.types import Page, PageImage
from inkmill.registry import suggest

STANDARD_INPUT = "-"


class ReadJob:
    """Reads documents and writes what they say.

    Args:
        sources: files, folders (searched with their subfolders), or "-" for the standard input.
        formats: names of `FORMATS`, with commas between them.
        output: a folder; None: the standard output.
        dpi: at which PDFs are drawn.
        max_pages: refuse documents with more.
        again: read what has its results already, too.

    Attributes:
        problems: a sentence for each page or document that could not be read.
        pages: how many were read.
        skipped: how many documents had their results already.

    Raises:
        ConfigError: an unknown format, or more than one for the standard output.
        DataError: a folder without documents.
    """

    def __init__(
        self,
        sources: Sequence[str],
        formats: str = "text",
        output: Path | None = None,
        *,
        dpi: float = DPI,
        max_pages: int = 10_000,
        again: bool = False,
    ) -> None:
        self.formats = [name.strip() for name in formats.split(",")]
        for name in self.formats:
            if name not in FORMATS:
                raise ConfigError(
                    f"format {name!r}{suggest(name, list(FORMATS))}; the formats are {', '.join(FORMATS)}"
                )
        if output is None and len(self.formats) > 1:
            raise ConfigError("several formats need a folder to be written to: --output FOLDER")
        self._output, self._dpi, self._max_pages = output, dpi, max_pages
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.pages = self.skipped = 0
        found = [one for source in sources for one in _documents(source)]
        self._names = _names(found)
        self._todo = [one for one in self._names if again or not self._is_done(one)]
        self.skipped = len(self._names) - len(self._todo)

    def run(
        self,
        open_reader: Callable[[], PageReader],
        progress: Callable[[int, int], None] = lambda done, total: None,
        standard_output: BinaryIO | None = None,
    ) -> None:
        """Read everything.

        Args:
            open_reader: called only where there is something to read.
            progress: gets (pages done, pages known so far).
            standard_output: for results without a folder.

        Raises:
            InkmillError: no model; a result cannot be written.
        """
        if not self._todo:
            return
        reader = open_reader()
        known = len(self._todo)
        out = standard_output or sys.stdout.buffer
        for source in self._todo:
            try:
                with Document(*_opened(source), dpi=self._dpi, max_pages=self._max_pages) as document:
                    known += document.count - 1
                    pages = []
                    for _, page in reader.read_images(self._good_pages(document)):
                        pages.append(page)
                        self.pages += 1
                        self.notes += [f"{page.source}, page {page.number}: {note}" for note in page.notes]
                        progress(self.pages + len(self.problems), known)
                    if pages:
                        self._write(source, pages, document, out)
            except DataError as error:
                self.problems.append(str(error))

    def report(self) -> Iterator[str]:
        """Yield what was left out and what went wrong, a line each."""
        if self.skipped:
            yield f"{self.skipped} documents have their results in {self._output} already; --again reads them once more"
        yield from self.notes
        yield from self.problems
        if self.problems:
            yield f"{self.pages} pages were read, {len(self.problems)} pages or documents could not be"

    def _good_pages(self, document: Document) -> Iterator[PageImage]:
        for number in range(1, document.count + 1):
            try:
                yield document.page(number)
            except DataError as error:
                self.problems.append(str(error))

    def _write(self, source: str, pages: Sequence[Page], document: Document, out: BinaryIO) -> None:
        for name in self.formats:
            form = FORMATS[name]
            parts = [[page] for page in pages] if form.each_page else [pages]
            for part in parts:
                content = form.write(part, document)
                if self._output is None:
                    out.write(content)
                    out.flush()
                    continue
                number = part[0].number if form.each_page and document.count > 1 else None
                with atomic_path(self._file(source, name, number)) as temporary:
                    temporary.write_bytes(content)

    def _file(self, source: str, name: str, number: int | None = None) -> Path:
        assert self._output is not None
        page = "" if number is None else f"-{number:04}"
        return self._output / f"{self._names[source]}{page}{FORMATS[name].suffix}"

    def _is_done(self, source: str) -> bool:
        if self._output is None or source == STANDARD_INPUT:
            return False
        return all(
            self._file(source, name).exists() or (FORMATS[name].each_page and self._file(source, name, 1).exists())
            for name in self.formats
        )


def _documents(source: str) -> list[tuple[str, str]]:
    """Return (path, name in the output folder) of the documents of a source."""
    path = Path(source)
    if source == STANDARD_INPUT:
        return [(source, "standard-input")]
    if not path.is_dir():
        return [(source, path.name)]
    files = sorted(one for one in path.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file())
    if not files:
        raise DataError(f"{source}: a folder without documents; looked for {', '.join(SUFFIXES)}")
    return [(str(one), str(one.relative_to(path))) for one in files]


def _names(documents: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the name in the output folder of each document, each document once."""
    found: dict[str, str] = {}
    for path, name in documents:
        if path not in found and name in found.values():
            raise ConfigError(f"{path}: another file is called {name}, too; read them into two folders")
        found[path] = name
    return found


def _opened(source: str) -> tuple[str | bytes, str]:
    if source != STANDARD_INPUT:
        return source, source
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DataError(f"the standard input: more than the {MAX_BYTES:,} bytes that are allowed")
    return data, "standard input"
