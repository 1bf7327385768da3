"""Formats of text regions in one JSON file for all pictures: parsing, detecting, and errors, whatever its keys are."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from inkmill.data.formats.base import Entry, LabelFormat
from inkmill.data.formats.lines import read_text
from inkmill.data.types import Polygons, Target
from inkmill.errors import LabelFileError

Json = dict[str, Any]


class JsonRegions(LabelFormat):
    """One JSON file.

    Attributes:
        keys: texts that the file must hold, all of them, to be in the format.
    """

    keys: ClassVar[tuple[str, ...]]

    @abstractmethod
    def pictures(self, found: Any) -> Iterator[tuple[str, Polygons]]:
        """Yield name and regions of each picture of a parsed file.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, IndexError: it is not in the format; a ValueError's text
                says what was expected.
        """

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; the file may be one line of gigabytes, so its keys are looked for in its text."""
        if not head or head[0].lstrip()[:1] not in ("{", "["):
            return None
        text = text_of(path)
        return f"it holds {', '.join(self.keys)}" if all(key in text for key in self.keys) else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; the file is held in memory."""
        found, image = load_json(path), ""
        try:
            for image, target in self.pictures(found):
                if not isinstance(image, str) or not image:
                    raise ValueError(f"an image name is {str(image)[:40]!r}")
                yield Entry(image, target, 1)
        except KeyError as error:
            raise LabelFileError(f"expected the key {error} {_after(image)}, as {self.title} has it", path, 1) from None
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise LabelFileError(f"not as {self.title} has it {_after(image)}: {str(error)[:200]}", path, 1) from None

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`; most of these formats are read only."""
        return f"{self.name} is read, not written: paddle_det and coco_det hold the same"


def load_json(path: Path) -> Any:
    """Return a parsed file; raises LabelFileError where it is not JSON."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise LabelFileError(f"not valid JSON: {error.msg} (column {error.colno})", path, error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise LabelFileError(f"not valid JSON: {str(error)[:120]}", path, 1) from None


def text_of(path: Path) -> str:
    """Return the text of a file, once for all formats that want to know whether it is theirs; "" where it is none."""
    try:
        status = path.stat()
        return _text(path, status.st_mtime_ns, status.st_size)
    except (LabelFileError, OSError):
        return ""


@lru_cache(maxsize=1)
def _text(path: Path, changed: int, size: int) -> str:
    return read_text(path)


def _after(image: str) -> str:
    return f"after {image}" if image else "of the first image"
