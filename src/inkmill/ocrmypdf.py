"""inkmill as the engine of OCRmyPDF: `ocrmypdf --ocr-engine inkmill scan.pdf out.pdf`.

OCRmyPDF finds it by the entry point `ocrmypdf`, renders pages, calls the engine from many threads of one process, and
lays the text behind the pages. So there is one reader, made once, on one core a call: the pages are what runs at once.
"""

from __future__ import annotations

import argparse
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inkmill.errors import MissingExtraError
from inkmill.pages.documents import open_pages
from inkmill.pages.outputs.shapes import BASELINE
from inkmill.pages.types import Line, Page, Points, Word
from inkmill.version import __version__

try:
    from ocrmypdf import hookimpl
    from ocrmypdf.models.ocr_element import Baseline, BoundingBox, OcrClass, OcrElement
    from ocrmypdf.pluginspec import OcrEngine, OrientationConfidence
except ImportError:
    raise MissingExtraError("ocrmypdf", "ocrmypdf", "the plugin of OCRmyPDF") from None

if TYPE_CHECKING:
    from inkmill.pages.reader import PageReader

NAME = "inkmill"
_UNKNOWN_DPI = 300.0
_lock = threading.Lock()
_readers: dict[tuple[str | None, str | None], PageReader] = {}


@hookimpl  # type: ignore[untyped-decorator, unused-ignore]
def add_options(parser: argparse.ArgumentParser) -> None:
    """Let the command line choose the engine, and its models."""
    for action in parser._actions:
        if action.dest == "ocr_engine" and action.choices is not None and NAME not in action.choices:
            action.choices = [*action.choices, NAME]
    group = parser.add_argument_group("inkmill")
    group.add_argument("--inkmill-detector", metavar="FILE", help="ONNX file that finds text; default: inkmill's own")
    group.add_argument("--inkmill-reader", metavar="FILE", help="ONNX file that reads lines; default: inkmill's own")


@hookimpl(tryfirst=True)  # type: ignore[untyped-decorator, unused-ignore]
def get_ocr_engine(options: Any) -> OcrEngine | None:
    """Return the engine where it was asked for by name; "auto" stays with Tesseract."""
    return InkmillEngine() if options is None or getattr(options, "ocr_engine", "auto") == NAME else None


class InkmillEngine(OcrEngine):  # type: ignore[misc, unused-ignore]
    """Reads pages with `PageReader`."""

    @staticmethod
    def version() -> str:
        """Return inkmill's version."""
        return __version__

    @staticmethod
    def creator_tag(options: Any) -> str:
        """Return what the PDF names as its creator."""
        return f"inkmill {__version__}"

    def __str__(self) -> str:
        return f"inkmill {__version__}"

    @staticmethod
    def languages(options: Any) -> set[str]:
        """Return whatever is asked for: a reader knows characters, not languages."""
        return set(getattr(options, "languages", None) or ()) | {"eng"}

    @staticmethod
    def get_orientation(input_file: Path, options: Any) -> OrientationConfidence:
        """Return by how many degrees a page must be turned clockwise to stand upright."""
        page = _read(input_file, options)
        return OrientationConfidence(angle=(360 - page.rotation) % 360, confidence=15.0 if page.lines else 0.0)

    @staticmethod
    def get_deskew(input_file: Path, options: Any) -> float:
        """Return by how many degrees a page must be turned counter-clockwise."""
        return _read(input_file, options).skew

    @staticmethod
    def supports_generate_ocr() -> bool:
        """Return True: words and their places are given as they are."""
        return True

    @staticmethod
    def generate_ocr(input_file: Path, options: Any, page_number: int = 0) -> tuple[OcrElement, str]:
        """Return a page's lines and words, and its text."""
        page = _read(input_file, options)
        root = OcrElement(
            ocr_class=OcrClass.PAGE,
            bbox=BoundingBox(left=0, top=0, right=page.width, bottom=page.height),
            dpi=page.dpi or _UNKNOWN_DPI,
            page_number=page_number,
            children=[_line(line) for line in page.lines],
        )
        return root, page.text

    @staticmethod
    def generate_hocr(input_file: Path, output_hocr: Path, output_text: Path, options: Any) -> None:
        """Raise NotImplementedError: `generate_ocr` is there."""
        raise NotImplementedError

    @staticmethod
    def generate_pdf(input_file: Path, output_pdf: Path, output_text: Path, options: Any) -> None:
        """Raise NotImplementedError: `generate_ocr` is there."""
        raise NotImplementedError


def _read(file: Path, options: Any) -> Page:
    (image,) = open_pages(file)
    return _reader(options).read_page(image)


def _reader(options: Any) -> PageReader:
    chosen = getattr(options, "inkmill_detector", None), getattr(options, "inkmill_reader", None)
    with _lock:
        if chosen not in _readers:
            from inkmill.pages.reader import PageReader

            _readers[chosen] = PageReader(*chosen, threads=1)
        return _readers[chosen]


def _line(line: Line) -> OcrElement:
    # The baseline as it is once the line is turned level: so many pixels above its lower edge (y runs down).
    height = math.dist(line.polygon[0].tolist(), line.polygon[-1].tolist())
    angle = -math.degrees(_slant(line.polygon))
    return OcrElement(
        ocr_class=OcrClass.LINE,
        bbox=_box(line.polygon),
        textangle=angle,
        baseline=Baseline(slope=0.0, intercept=-BASELINE * height),
        confidence=line.confidence,
        children=[_word(word) for word in line.words],
    )


def _word(word: Word) -> OcrElement:
    return OcrElement(
        ocr_class=OcrClass.WORD, bbox=_box(word.polygon), text=word.text, confidence=word.confidence, direction="ltr"
    )


def _slant(polygon: Points) -> float:
    (x0, y0), (x1, y1) = polygon[:2].tolist()
    return math.atan2(y1 - y0, x1 - x0)


def _box(polygon: Points) -> BoundingBox:
    left, top = np.floor(polygon.min(axis=0)).tolist()
    right, bottom = np.ceil(polygon.max(axis=0)).tolist()
    return BoundingBox(left=left, top=top, right=right, bottom=bottom)
