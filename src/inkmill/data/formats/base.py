"""What a label format is: a class that reads entries, writes them, and detects its own files.

A format knows names and labels only; `detect` finds where the images lie and which format a path has. To add one, copy
the file of a similar one, and add its line to `formats/__init__.py`: everything else follows from its attributes.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import ClassVar

from inkmill.data.formats.lines import write_lines
from inkmill.data.types import Target, Text
from inkmill.errors import DataError
from inkmill.files import explain
from inkmill.registry import Registry


@dataclass(frozen=True, slots=True)
class Entry:
    """One image and its label, as a label file names them.

    Attributes:
        image: the image's path as written; relative paths are relative to the folder that `detect.find_root` finds.
        target: its label.
        line: line of the label file, from 1; in folder formats 1.
    """

    image: str
    target: Target
    line: int


class LabelFormat(ABC):
    """One way to write labels.

    Args:
        label_pattern: regular expression of the format `filename`; the others do not use it.

    Attributes:
        name: the name in specs and on the command line.
        title: what it is, in a few words.
        example: one line, for documentation and error messages.
        specificity: the order of detection: the format with the higher number is preferred where several fit equally
            well, since what it accepts a more general format may accept by accident. No two formats share a number
            (label files and folders are counted apart).
        header: the first line of a label file; empty for none.
        file_name: what `convert` calls the label file; empty when the labels are not in one file.
        image_folder: where `convert` puts the images, beside the label file; empty for the same folder.
        names_folder: whether the label file writes `image_folder` before each name.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    example: ClassVar[str]
    specificity: ClassVar[int]
    header: ClassVar[str] = ""
    file_name: ClassVar[str] = ""
    image_folder: ClassVar[str] = "images"
    names_folder: ClassVar[bool] = False

    def __init__(self, label_pattern: str | None = None) -> None:
        self.label_pattern = label_pattern
        self.remarks = Counter[str]()
        """What a user should know of what was read, and how often: passed over, or read otherwise than it says."""

    @property
    def of_folder(self) -> bool:
        """True when `read` takes a folder of images instead of a label file."""
        return not self.file_name

    @abstractmethod
    def detect(self, path: Path, head: list[str]) -> str | None:
        """Return the reason to read this path in the format, in words; None if it cannot be in it.

        Args:
            path: the label file, or the folder of a folder format.
            head: its first lines that are not blank; empty for a folder.
        """

    @abstractmethod
    def read(self, path: Path) -> Iterator[Entry]:
        """Yield the entries of a label file (or folder), streamed.

        Raises:
            LabelFileError: the file, or a line of it, is not in this format; carries ``file:line``.
        """

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """Write a label file that `read` reads back as the same entries, the whole file or nothing.

        Args:
            path: the label file; of a folder format the folder of the images.
            entries: streamed; each becomes a `line` after the header.

        Raises:
            DataError: an entry that `refuses` refuses.
            OutputError: the place cannot be written.
        """
        lines = (self.line(image, text) for image, text in self.checked(entries))
        write_lines(path, chain([self.header] if self.header else [], lines))

    def line(self, image: str, text: str) -> str:
        """Return the line for one image, without its line end; `text` comes from `text_of`."""
        raise NotImplementedError(f"the format {self.name} overrides neither write nor line")

    def text_of(self, target: Target) -> str:
        """Return a target that `refuses` accepts as the text of its line."""
        return target.value if isinstance(target, Text) else ""

    def refuses(self, image: str, target: Target) -> str | None:
        """Return the reason why an image name or label cannot be written in the format; None if it can."""
        if not isinstance(target, Text):
            return f"{self.name} holds one text an image"
        return unwritable(image, "\t\r\n\0") or unwritable(target.value, "\r\n\0", "label")

    def place(self, key: str, target: Target, index: int, suffix: str) -> str:
        """Return where `convert` puts an image, relative to the destination, with slashes.

        Args:
            key: the sample's key; kept where it can be a path inside the destination.
            target: its label, for formats that put it in the name.
            index: its position, which makes other names unique.
            suffix: of the image's real format, with the dot.
        """
        return str(PurePosixPath(self.image_folder, plain_name(key, index, suffix)))

    def label_of(self, place: str) -> str | None:
        """Return the file that holds the label of the image at `place` alone; None where all are in one file."""
        return None

    def named(self, place: str) -> str:
        """Return what the label file calls an image that lies at `place`."""
        return place if self.names_folder else place.removeprefix(f"{self.image_folder}/")

    def checked(self, entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
        """Yield (image, `text_of` its target) of entries, each checked with `refuses`; raises DataError."""
        for entry in entries:
            refusal = self.refuses(entry.image, entry.target)
            if refusal:
                raise DataError(f"{entry.image!r} cannot be written in the format {self.name!r}: {refusal}")
            yield entry.image, self.text_of(entry.target)


FORMATS: Registry[type[LabelFormat]] = Registry("label format")
"""Every label format by its name."""


def register(fmt: type[LabelFormat]) -> type[LabelFormat]:
    """Add a label format under its `name`, as a class decorator.

    Raises:
        TypeError: an attribute that detection or the documentation needs is missing; a programming error.
        ValueError: another format has the same name or the same specificity; a programming error.
    """
    # 1. What is forgotten would otherwise only be noticed by a format that is never detected.
    missing = [name for name in ("name", "title", "example", "specificity") if not hasattr(fmt, name)]
    if missing:
        raise TypeError(f"the label format {fmt.__name__} needs the class attributes {', '.join(missing)}")
    # 2. Equal numbers would make the order of detection depend on the order of imports.
    for other in by_specificity(of_folder=not fmt.file_name):
        if other.specificity == fmt.specificity:
            raise ValueError(f"{fmt.name} and {other.name} have the same specificity: which one is to be preferred?")
    return FORMATS.register(fmt.name)(fmt)


def by_specificity(of_folder: bool) -> list[type[LabelFormat]]:
    """Return the formats of label files, or those of folders, in the order of detection: the most specific first."""
    found = [fmt for fmt in map(FORMATS.get, FORMATS.names()) if (not fmt.file_name) == of_folder]
    return sorted(found, key=lambda fmt: -fmt.specificity)


IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
"""Files that count as images when a folder is searched."""


def unwritable(text: str, forbidden: str, what: str = "image name") -> str | None:
    """Return the reason why `text` cannot be written (a forbidden character, not valid Unicode); None if it can."""
    found = next((char for char in text if char in forbidden), None)
    if found is not None:
        return f"the {what} holds {found!r}"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return f"the {what} is not valid Unicode"
    return None


def plain_name(key: str, index: int, suffix: str) -> str:
    """Return `key` as a relative path with an image suffix; a number where the key would lead outside the folder."""
    # Keys come from untrusted files: absolute paths, `..` and drives must not leave the destination.
    parts = PurePosixPath(key.replace("\\", "/")).parts
    outside = not parts or parts[0] == "/" or ".." in parts or ":" in parts[0]
    if outside or any(char < " " for char in key):
        return f"outside/{index:09d}{suffix}"
    path = PurePosixPath(*parts)
    return str(path if path.suffix.lower() in IMAGE_SUFFIXES else path.with_name(path.name + suffix))


def list_images(folder: Path) -> Iterator[str]:
    """Yield the images under a folder as relative paths with slashes, sorted within each folder.

    Linked folders are followed, each real folder once. Files and folders whose name begins with a dot are
    skipped: they are metadata of other programs (`.thumbnails`, `._a.png`).

    Raises:
        DataError: a folder cannot be listed.
    """
    seen: set[tuple[int, int]] = set()
    pending = [_entries(folder, "", seen)]  # a stack of our own: folders may be nested deeper than Python's recursion
    while pending:
        name, is_folder = next(pending[-1], ("", False))
        if not name:
            pending.pop()
        elif is_folder:
            pending.append(_entries(folder, f"{name}/", seen))
        elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:  # noqa: PTH122 - a million times
            yield name


def _entries(top: Path, prefix: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """Yield (prefix + name, whether it is a folder) of what one folder holds, sorted."""
    folder = top / prefix
    try:
        # Links may lead in circles, or to one folder twice: what counts is the folder itself, not its path.
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as listing:
            entries = sorted((entry.name, _is_folder(entry)) for entry in listing if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"the folder cannot be listed: {explain(error)}") from error
    yield from ((prefix + name, is_folder) for name, is_folder in entries)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself is a file that cannot be read, and no reason to refuse the others
        return False
