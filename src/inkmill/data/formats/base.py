"""What a label format is: a class that reads entries, writes them, and says whether a file looks like its own.

A format knows names and labels only. Where the images lie is found by `roots`, which format a path has by `sniff`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from inkmill.data.types import Target, Text
from inkmill.errors import DataError
from inkmill.registry import Registry


@dataclass(frozen=True, slots=True)
class Entry:
    """One image and its label, as a label file names them.

    Attributes:
        image: the image's path as written; relative paths are relative to a folder that `roots.find_root` finds.
        target: its label.
        line: line of the label file, from 1; in folder formats 1.
    """

    image: str
    target: Target
    line: int


class LabelFormat(ABC):
    """One way to write labels down.

    Args:
        label_pattern: regular expression of the format `filename`; the others do not use it.

    Attributes:
        name: the name in specs and on the command line.
        title: what it is, in a few words.
        example: one line, for documentation and error messages.
        file_name: what `convert` calls the label file; empty when the labels are not in one file.
        image_folder: where `convert` puts the images, beside the label file; empty for the same folder.
        names_folder: whether the label file writes `image_folder` before each name.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    example: ClassVar[str]
    file_name: ClassVar[str] = ""
    image_folder: ClassVar[str] = "images"
    names_folder: ClassVar[bool] = False

    def __init__(self, label_pattern: str | None = None) -> None:
        self.label_pattern = label_pattern

    @property
    def of_folder(self) -> bool:
        """True when `read` takes a folder of images instead of a label file."""
        return not self.file_name

    @abstractmethod
    def claims(self, path: Path, head: list[str]) -> str | None:
        """Say why this looks like the format, or None.

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

    @abstractmethod
    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """Write a label file that `read` reads back as the same entries, the whole file or nothing.

        Raises:
            DataError: an entry that `refuses` refuses.
            OutputError: the place cannot be written.
        """

    def refuses(self, image: str, target: Target) -> str | None:
        """Say why this image name or label cannot be written in the format, or None when it can."""
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
        """Yield (image, text) of entries, each checked with `refuses`; raises DataError."""
        for entry in entries:
            refusal = self.refuses(entry.image, entry.target)
            if refusal:
                raise DataError(f"{entry.image!r} cannot be written in the format {self.name!r}: {refusal}")
            yield entry.image, entry.target.value if isinstance(entry.target, Text) else ""


FORMATS: Registry[type[LabelFormat]] = Registry("label format")
"""Every label format by its name."""


IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
"""Files that count as images when a folder is searched."""


def unwritable(text: str, forbidden: str, what: str = "image name") -> str | None:
    """Say which of the forbidden characters `text` holds, if any, or that it is no valid Unicode."""
    found = next((char for char in text if char in forbidden), None)
    if found is not None:
        return f"the {what} holds {found!r}"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return f"the {what} is not valid Unicode"
    return None


def plain_name(key: str, index: int, suffix: str) -> str:
    """Return `key` as a relative path with an image suffix; a number where the key would lead outside the folder."""
    parts = PurePosixPath(key.replace("\\", "/")).parts
    outside = not parts or parts[0] == "/" or ".." in parts or ":" in parts[0]
    if outside or any(char < " " for char in key):
        return f"outside/{index:09d}{suffix}"
    path = PurePosixPath(*parts)
    return str(path if path.suffix.lower() in IMAGE_SUFFIXES else path.with_name(path.name + suffix))
