"""PDF files: their pages as pictures, rendered in a process that can be killed.

A page or pixel limit is an error, never a silent cut. A file that crashes the process, or a page that takes too long,
costs that page: the next one starts a new process.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.errors import DataError, ImageError, MissingExtraError, PageLimitError
from inkmill.pages import pdf_child

DPI = 200
"""What pages are rendered at: text of 8 points is then 22 pixels high."""
MAX_SECONDS = 60.0
"""Of one page; then its process is killed."""
MAX_MEMORY = 2 << 30
"""Of the process, in bytes of address space."""
_POINTS = 72


class PdfProcess:
    """A PDF, open in a process of its own; close it, or use it with `with`. One thread at a time.

    Args:
        data: the file.
        name: for errors.
        password: of an encrypted file.
        seconds: after which a page is given up.

    Attributes:
        count: pages.

    Raises:
        MissingExtraError: pypdfium2 is not installed.
        DataError: no PDF, damaged, or encrypted.
    """

    def __init__(self, data: bytes, name: str, password: str | None = None, seconds: float = MAX_SECONDS) -> None:
        if importlib.util.find_spec("pypdfium2") is None:
            raise MissingExtraError("pypdfium2", "pdf", "reading PDF files")
        self._data, self._name, self._password, self._seconds = data, name, password, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self.count = int(self._start()["pages"])

    def size(self, number: int) -> tuple[float, float]:
        """Return width and height of a page as it is displayed, in points.

        Raises:
            ImageError: the page is damaged.
        """
        answer, _ = self._ask({"size": number}, f"{self._name}: page {number}")
        return float(answer["width"]), float(answer["height"])

    def render(self, number: int, dpi: float, max_pixels: int) -> NDArray[np.uint8]:
        """Return a page as uint8 (H, W, 3) RGB.

        Args:
            number: from 1.
            dpi: pixels an inch.
            max_pixels: refuse larger pages, before they are rendered.

        Raises:
            PageLimitError: larger.
            ImageError: damaged, too slow, or too much for the memory.
        """
        where = f"{self._name}: page {number}"
        width, height = self.size(number)
        pixels = width * height * (dpi / _POINTS) ** 2
        if not 0 < pixels <= max_pixels:
            raise PageLimitError(
                f"{where}: {width / _POINTS:.1f} x {height / _POINTS:.1f} inches are {pixels:,.0f} pixels at {dpi:g} "
                f"dpi, more than the {max_pixels:,} allowed; ask for fewer dpi"
            )
        answer, content = self._ask({"render": number, "dpi": dpi}, where)
        shape = (int(answer["height"]), int(answer["width"]), 3)
        return np.frombuffer(content, np.uint8).reshape(shape)

    def close(self) -> None:
        """End the process, from any thread; a page that is being rendered is given up."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what was not yet sent goes nowhere
                        pipe.close()
            process.wait()

    def __enter__(self) -> PdfProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> dict[str, Any]:
        self._process = subprocess.Popen(
            # As a file, so that it starts in no time; -P: the names in its folder are not those of Python itself.
            [sys.executable, "-P", pdf_child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._closed:  # meanwhile, by another thread
            self._end()
        question = {"open": len(self._data), "password": self._password, "memory": MAX_MEMORY + 2 * len(self._data)}
        try:
            return self._ask(question, self._name, self._data)[0]
        except ImageError as error:
            self._end()
            said = str(error)
            if "assword" in said:
                raise DataError(f"{self._name}: the PDF is encrypted; give its password") from error
            raise DataError(f"{self._name}: the PDF is damaged and cannot be opened") from error

    def _ask(self, question: dict[str, Any], where: str, content: bytes = b"") -> tuple[dict[str, Any], bytes]:
        if self._closed:
            raise DataError(f"{where}: the document is closed")
        if self._process is None:
            self._start()
        process = self._process
        if process is None:
            raise DataError(f"{where}: the document is closed")
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._seconds, give_up)
        timer.start()
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n" + content)
            process.stdin.flush()
            line = process.stdout.readline()
            answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
            body = process.stdout.read(answer.get("bytes", 0))
        except (OSError, ValueError):  # a broken or closed pipe: the process died or was ended while it was asked
            answer, body = {}, b""
        finally:
            timer.cancel()
        if not answer or len(body) < answer["bytes"]:
            self._end()
            took = f"took longer than {self._seconds:g} s" if late.is_set() else "is damaged: PDFium crashed on it"
            raise ImageError(f"{where}: {took}; it was given up")
        if "error" in answer:
            raise ImageError(f"{where}: cannot be rendered ({answer['error']})")
        return answer, body
