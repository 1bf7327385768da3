"""Formats with one file of regions a picture: how that file is found, detected and written, whatever it holds.

The archives of competitions unpack files and pictures into folders of their own, and no two alike. So a file belongs to
the picture whose name it has: it may lie beside the picture or anywhere below the same folder. Of several of one name
the one counts that lies in a folder of the picture's folder's name (`images/train/a.jpg`, `labels/train/a.txt`).
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import ClassVar

from inkmill.data.formats.base import Entry, LabelFormat, list_images, unwritable
from inkmill.data.formats.regions import refuses_regions
from inkmill.data.types import Polygons, Target
from inkmill.errors import DataError, LabelFileError
from inkmill.files import make_folder, writing

SUFFIXES = frozenset({".txt", ".json", ".xml", ".gt"})
"""Of files of regions."""

_TRIED = 20  # pictures whose files decide about the format


class PerPicture(LabelFormat):
    """A folder of pictures, searched recursively, and a file of regions for each of them.

    Attributes:
        patterns: names of the file for a picture, `{stem}` for the picture's without its suffix; the first is written.
    """

    image_folder = ""
    patterns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def parse(self, file: Path, image: Path) -> Polygons:
        """Return the regions of a picture.

        Args:
            file: its file of regions.
            image: the picture.

        Raises:
            LabelFileError: the file is not in this format.
        """

    def dump(self, image: str, target: Polygons) -> str:
        """Return the content of a picture's file, where the format can be written."""
        raise NotImplementedError(f"the format {self.name} is read only")

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; decides by the files of the first pictures, of which one must hold a region."""
        files, seen = indexed(path), None
        for image in islice(list_images(path), _TRIED):
            found = self._file(path, image, files)
            if not isinstance(found, Path):
                return None
            try:
                regions = len(self.parse(found, path / image).points)
            except LabelFileError:
                return None
            seen = seen or (f"{image} has its regions in {found.relative_to(path)}" if regions else None)
        return seen

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; a picture without its file is an error, since its regions are unknown."""
        files = index_of(path)
        for image in list_images(path):
            found = self._file(path, image, files)
            if not isinstance(found, Path):
                raise LabelFileError(found, path / image)
            yield Entry(image, self.parse(found, path / image), 1)

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; `path` is the folder of the pictures."""
        made: set[Path] = set()  # a.jpg and a.png would share one file
        for entry in entries:
            refusal = self.refuses(entry.image, entry.target)
            file = path if refusal else path / (self.label_of(entry.image) or "")
            if file in made:
                refusal = f"another image has its regions in {file.name}"
            if refusal or not isinstance(entry.target, Polygons):
                raise DataError(f"{entry.image!r} cannot be written in the format {self.name!r}: {refusal}")
            made.add(file)
            make_folder(file.parent)
            with writing(file):
                file.write_text(self.dump(entry.image, entry.target), "utf-8", newline="\n")

    def label_of(self, place: str) -> str | None:
        """See `LabelFormat.label_of`."""
        return Path(place).with_name(self._names(place)[0]).as_posix()

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`; most of these formats are read only."""
        if type(self).dump is PerPicture.dump:
            return f"{self.name} is read, not written: paddle_det and labelme_det hold the same"
        name = "the image name is empty" if not Path(image).name else unwritable(image, "\r\n\0")
        return name or refuses_regions(target, self.name)

    def _names(self, image: str) -> list[str]:
        return [pattern.format(stem=Path(image).stem) for pattern in self.patterns]

    def _file(self, folder: Path, image: str, files: Index) -> Path | str:
        """Return the file of a picture, or why there is none."""
        names = self._names(image)
        found = [file for name in names for file in files.get(name, ())]
        beside = (folder / image).parent
        best = [file for file in found if file.parent == beside] or [f for f in found if f.parent.name == beside.name]
        if not found:
            return f"no regions for this image: expected {' or '.join(names)} under {folder}"
        if len(best or found) > 1:
            return f"its regions may be in {(best or found)[0]} or {(best or found)[1]}: keep one"
        return (best or found)[0]


Index = dict[str, list[Path]]
"""Files that may hold the regions of a picture, by name."""


def index_of(folder: Path) -> Index:
    """Return the files anywhere under a folder whose suffix is one that files of regions have."""
    files: Index = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if os.path.splitext(name)[1] in SUFFIXES:  # noqa: PTH122 - a million times
                files.setdefault(name, []).append(Path(place, name))
    return files


indexed = lru_cache(maxsize=1)(index_of)
"""`index_of`, once for all formats that ask whether a folder is theirs; whoever asks them clears it before."""
