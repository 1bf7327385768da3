"""From what a user gives - a path, bytes, an array - to pages upright as a viewer shows them.

One decoder (`inkmill.data.pipeline.decode`) for every kind of input: a phone's photograph is upright whether it comes
as a file, as bytes, or as a PIL image.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inkmill.pages.types import PageImage
from inkmill.runtime.reader import picture_pixels


def open_pages(source: Any, name: str | None = None) -> Iterator[PageImage]:
    """Yield the pages of one source.

    Args:
        source: a path, encoded bytes, a uint8 array (HW gray, HWC RGB or RGBA), or a PIL image.
        name: what to call it in the pages and in errors; by default its path, or "image".

    Raises:
        DataError: it cannot be read; names it.
    """
    name = name or (str(source) if isinstance(source, str | Path) else "image")
    yield PageImage(name, 1, picture_pixels(source, 3, name))
