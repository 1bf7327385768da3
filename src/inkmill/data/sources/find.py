"""Image files by what people name: files, folders, globs, and lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inkmill.errors import DataError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"}


def find_images(asked: Sequence[str]) -> list[Path]:
    """Return the image files meant by files, folders, globs and @lists, in order, each once.

    Raises:
        DataError: something names no image.
    """
    found: dict[Path, None] = {}
    for name in asked:
        for one in _lines(Path(name[1:])) if name.startswith("@") else [name]:
            found.update(dict.fromkeys(_images(one)))
    return list(found)


def _images(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    elif path.is_file():
        files = [path]
    else:
        files = _matches(path)
    if not files:
        raise DataError(f"{name}: no image there; expected a file, a folder of images, a glob, or @list.txt")
    return files


def _matches(pattern: Path) -> list[Path]:
    try:
        found = list(Path(pattern.anchor or ".").glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError:  # no pattern that pathlib knows
        return []
    return sorted(match for match in found if match.is_file())


def _lines(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"{path}: the list cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the list is not UTF-8: save it as UTF-8, one image a line") from error
    if not lines:
        raise DataError(f"{path}: the list is empty; expected one image a line")
    return lines
