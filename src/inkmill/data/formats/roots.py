"""Where the images of a label file lie: the folder in which most of its first names are files.

Label files do not say what their names are relative to, and every tool assumes something else. Looking at the disk
settles it, and the answer can be shown.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inkmill.data.formats.base import IMAGE_SUFFIXES
from inkmill.errors import DataError
from inkmill.files import explain

_FOLDERS = ("images", "imgs", "img", "image", "IMG")


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that a label file's names may be relative to.

    Attributes:
        folder: the folder.
        found: how many of the names looked for are files there.
        looked: how many names were looked for.
        tried: all folders in which was looked, in order.
    """

    folder: Path
    found: int
    looked: int
    tried: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.found} of the first {self.looked} images found in {self.folder}"


def find_root(label_file: Path, names: Sequence[str], images: Path | None = None) -> Root:
    """Return the folder in which most of `names` are files; of equals the first.

    Args:
        label_file: the label file; its folder, the folder's `images/` and the folder above are tried.
        names: some image names as the label file writes them.
        images: the folder of images where the user named one; then nothing but it and its `images/` is tried.
    """
    base = images if images is not None else label_file.parent
    places = [base, *(base / name for name in _FOLDERS)]
    if images is None:
        places += [base.parent, *(base.parent / name for name in _FOLDERS), Path()]
    tried = tuple(place for place in places if place.is_dir()) or (base,)
    roots = [Root(place, sum(_is_file(place / name) for name in names), len(names), tried) for place in tried]
    return max(roots, key=lambda root: root.found)


def _is_file(path: Path) -> bool:
    """Like `Path.is_file`, and False for what is too long to be a name, such as a whole line taken for one."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def list_images(folder: Path) -> Iterator[str]:
    """Yield the images under a folder as relative paths with slashes, sorted within each folder.

    Linked folders are followed, each real folder once. Files and folders whose name begins with a dot are not looked
    at: they are other programs' notes (`.thumbnails`, `._a.png`).

    Raises:
        DataError: a folder cannot be listed.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [_entries(folder, "", seen)]  # a stack, for folders may lie deeper than Python calls itself
    while waiting:
        name, is_folder = next(waiting[-1], ("", False))
        if not name:
            waiting.pop()
        elif is_folder:
            waiting.append(_entries(folder, f"{name}/", seen))
        elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:  # noqa: PTH122 - a million times
            yield name


def _entries(top: Path, prefix: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """Yield what lies in one folder, sorted, each with the prefix, and whether it is a folder."""
    folder = top / prefix
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as listing:
            entries = sorted((entry.name, entry.is_dir()) for entry in listing if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"the folder cannot be listed: {explain(error)}") from error
    yield from ((prefix + name, is_folder) for name, is_folder in entries)
