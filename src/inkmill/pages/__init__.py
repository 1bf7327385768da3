"""Pages to text: `PageReader().read(["receipt.jpg"])`, and the files that other programs read.

documents   files, bytes and arrays  -->  PageImage, one a page
reader      PageImage  --find-->  PageJob with crops  --recognise-->  LineText  --finish-->  Page
outputs     Page  -->  text, JSON, hOCR, ALTO, PAGE, TSV, searchable PDF, a picture with boxes
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inkmill.pages.reader import PageReader
    from inkmill.pages.types import Line, Page, PageImage, Word

__all__ = ["Line", "Page", "PageImage", "PageReader", "Word"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use: `inkmill --help` needs neither OpenCV nor ONNX Runtime."""
    if name == "PageReader":
        return import_module("inkmill.pages.reader").PageReader
    if name in __all__:
        return getattr(import_module("inkmill.pages.types"), name)
    raise AttributeError(f"module 'inkmill.pages' has no attribute {name!r}")
