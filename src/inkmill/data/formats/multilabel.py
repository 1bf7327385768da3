"""Lists of images with any number of class names each: `filename label_1 label_2`, space-separated, without a header.

The lines look like a TAO list whose labels hold spaces. Files called `.ssv` are detected; for others the
spec has to say `format: multilabel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.types import Labels, Target


@register
class MultiLabel(LabelFormat):
    """One image a line: its name, then its class names, all split by blanks; an image without a class is allowed."""

    name = "multilabel"
    title = "classification: name, then class names, split by blanks"
    example = "a.jpg cat outdoors"
    specificity = 20
    file_name = "labels.ssv"
    names_folder = True

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        return "its name ends in .ssv" if path.suffix.lower() == ".ssv" else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; the targets are `Labels`."""
        for number, line in read_lines(path):
            name, *labels = split_labels(line)
            yield Entry(name, Labels(tuple(labels)), number)

    def text_of(self, target: Target) -> str:
        """See `LabelFormat.text_of`."""
        return " ".join(target.names) if isinstance(target, Labels) else ""

    def line(self, image: str, text: str) -> str:
        """See `LabelFormat.line`."""
        return f"{image} {text}" if text else image

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        if not isinstance(target, Labels):
            return "multilabel holds class names, not texts"
        if target.unknown:
            return "multilabel has no place for unknown classes: csv_one_hot has"
        if not image or not all(target.names):
            return "a name is empty"
        # Blanks separate names, so neither the image's nor a class's may hold one.
        words = (unwritable(word, " \t\r\n\0", what) for what, word in _words(image, target))
        return next((refusal for refusal in words if refusal), None)


def split_labels(text: str) -> list[str]:
    """Split at spaces and TABs alone; other white space is part of a name."""
    return [word for word in text.replace("\t", " ").split(" ") if word]


def _words(image: str, target: Labels) -> Iterator[tuple[str, str]]:
    yield "image name", image
    yield from (("class name", name) for name in target.names)
