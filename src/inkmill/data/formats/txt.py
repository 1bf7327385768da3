"""One text file an image: `a.png` and `a.txt` side by side, or the texts in a folder of their own (`label/a.txt`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from inkmill.data.formats.base import Entry, LabelFormat, list_images, register
from inkmill.data.formats.lines import read_lines
from inkmill.data.types import Target, Text
from inkmill.errors import LabelFileError
from inkmill.files import make_folder, writing

_TEXT_FOLDERS = ("label", "labels", "gt", "txt")


@register
class TxtPerImage(LabelFormat):
    """A folder of images, searched recursively, each with a UTF-8 file of one line; an empty file is an empty label."""

    name = "txt"
    title = "one .txt an image, beside it or in label/"
    example = "a.png + a.txt"
    specificity = 20
    image_folder = ""

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; decides by the first image."""
        first = next(list_images(path), None)
        text = find_text(path, first) if first else None
        return f"{first} has its text in {text.relative_to(path)}" if text else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; an image without a text is an error, since its label is unknown."""
        for image in list_images(path):
            text = find_text(path, image)
            if text is None:
                expected = Path(image).with_suffix(".txt").as_posix()
                raise LabelFileError(f"no text for this image: expected {expected} in {path}", path / image)
            lines = list(read_lines(text))  # several lines are several texts, of which none is the label
            if len(lines) > 1:
                raise LabelFileError(f"expected one line and found {len(lines)}", text, lines[1][0])
            yield Entry(image, Text(lines[0][1] if lines else ""), 1)

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; `path` is the folder of the images. `convert` writes it into a scratch folder."""
        made: set[Path] = set()  # folders, of which there are few
        for image, text in self.checked(entries):
            file = path / self.label_of(image)
            if file.parent not in made:
                made.add(make_folder(file.parent))
            with writing(file):
                file.write_text(f"{text}\n" if text else "", encoding="utf-8", newline="\n")

    def label_of(self, place: str) -> str:
        """See `LabelFormat.label_of`."""
        return PurePosixPath(place).with_suffix(".txt").as_posix()

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        if isinstance(target, Text) and (target.value.isspace() or "\n" in target.value):
            return "the label is blank or has several lines"
        if isinstance(target, Text) and target.value.startswith("\ufeff"):
            return "the label begins with a byte order mark, which is not read back as a part of the label"
        return super().refuses(image, target)


def find_text(folder: Path, image: str) -> Path | None:
    """Return the text file of an image, or None: beside it, else under label/, labels/, gt/ or txt/ of the folder."""
    # With images/a.png the text may lie in label/images/a.txt or, as most tools have it, in label/a.txt.
    name = Path(image).with_suffix(".txt")
    inner = Path(*name.parts[1:]) if len(name.parts) > 1 else name
    places = [folder / name, *(folder / sub / part for sub in _TEXT_FOLDERS for part in dict.fromkeys((name, inner)))]
    return next((place for place in places if place.is_file()), None)
