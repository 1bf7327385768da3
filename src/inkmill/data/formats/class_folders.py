"""One folder a class: `cat/1.jpg`, `dog/2.jpg`, as torchvision's ImageFolder and Keras read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import ClassVar

from inkmill.data.formats.base import Entry, LabelFormat, list_images, plain_name, register, unwritable
from inkmill.data.types import Labels, Target
from inkmill.errors import LabelFileError

_LOOKED_AT = 10_000


@register
class ClassFolders(LabelFormat):
    """A folder of folders, each called by its class; deeper folders belong to the class at the top."""

    name: ClassVar[str] = "class_folders"
    title: ClassVar[str] = "classification: a folder of images for each class"
    example: ClassVar[str] = "cat/1.jpg"
    # Any name of an image can be a text too, so this is tried last; a classification task asks for it by name.
    specificity: ClassVar[int] = 5
    image_folder: ClassVar[str] = ""

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; no image may lie at the top, and there must be two folders."""
        classes = set()
        for image in islice(list_images(path), _LOOKED_AT):
            folder, slash, _ = image.partition("/")
            if not slash:
                return None
            classes.add(folder)
        return f"its images lie in {len(classes)} folders, one a class" if len(classes) > 1 else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; the targets are `Labels` of one name."""
        for image in list_images(path):
            folder, slash, _ = image.partition("/")
            if not slash:
                raise LabelFileError("the image lies in no folder, so it has no class: move it", path / image)
            yield Entry(image, Labels((folder,)), 1)

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; the folders are the labels, so this only checks that they say what they should."""
        for image, text in self.checked(entries):
            if PurePosixPath(image).parts[0] != text:
                raise LabelFileError(f"this image does not lie in the folder of its class {text!r}", path / image)

    def text_of(self, target: Target) -> str:
        """See `LabelFormat.text_of`."""
        return target.names[0] if isinstance(target, Labels) else ""

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`; a class must survive as the name of a folder on every system."""
        if not isinstance(target, Labels) or len(target.names) != 1 or target.unknown:
            return "a folder is one class, so each image needs exactly one"
        name = target.names[0]
        if not name or name != name.strip(" .") or len(name.encode("utf-8", "replace")) > 200:
            return "the class is empty, over 200 bytes, or begins or ends with a blank or a dot"
        return unwritable(name, '/\\<>:"|?*\t\r\n\0', "class name")

    def place(self, key: str, target: Target, index: int, suffix: str) -> str:
        """See `LabelFormat.place`: the folder of the class, then the image's own name."""
        name = PurePosixPath(plain_name(key, index, suffix)).name
        return str(PurePosixPath(self.text_of(target), f"{index:09d}-{name}"))
