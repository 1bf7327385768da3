"""ICDAR 2015's text detection: for `img_1.jpg` a file `gt_img_1.txt` of lines `x1,y1,x2,y2,x3,y3,x4,y4,text`.

The text is all that follows the eighth comma, commas and quotes included. `###` marks a region to ignore. The files lie
beside the images or in another folder under the same one, as the archives of the competition unpack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inkmill.data.formats.base import Entry, LabelFormat, list_images, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.formats.regions import refuses_regions, regions_of, rows_of
from inkmill.data.types import Polygons, Target
from inkmill.errors import DataError, LabelFileError
from inkmill.files import make_folder, writing

_NUMBER = re.compile(r"[ \t]*[-+]?[0-9]{1,9}(\.[0-9]*)?(e[-+]?[0-9]{1,2})?[ \t]*")
_PREFIX = "gt_"
_FARTHEST = 1_000_000_000  # pixels: beyond that, float32 arithmetic on corners means nothing


@register
class IcdarDet(LabelFormat):
    """A folder of images, searched recursively, each with a file of four-cornered regions."""

    name = "icdar_det"
    title = "ICDAR 2015 text detection: img_1.jpg and gt_img_1.txt"
    example = "10,8,90,8,90,30,10,30,New York"
    specificity = 30
    image_folder = ""

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; decides by the first image."""
        first = next(list_images(path), None)
        found = _texts(path).get(_text_name(first), []) if first else []
        return f"{first} has its regions in {found[0].relative_to(path)}" if found else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; an image without its file is an error, since its regions are unknown."""
        texts = _texts(path)
        for image in list_images(path):
            # A file beside the image wins; elsewhere the name decides, if it comes only once.
            beside = path / Path(image).with_name(_text_name(image))
            found = texts.get(beside.name, [])
            if not found:
                raise LabelFileError(f"no regions for this image: expected {beside.name} under {path}", path / image)
            if len(found) > 1 and beside not in found:
                raise LabelFileError(f"its regions may be in {found[0]} or {found[1]}: keep one", path / image)
            yield Entry(image, _read(beside if beside in found else found[0]), 1)

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; `path` is the folder of the images. `convert` writes it into a scratch folder."""
        made: set[Path] = set()  # a.jpg and a.png would share one file
        for entry in entries:
            refusal = self.refuses(entry.image, entry.target)
            file = path / self.label_of(entry.image) if not refusal else path
            if file in made:
                refusal = f"another image has its regions in {file.name}"
            if refusal or not isinstance(entry.target, Polygons):
                raise DataError(f"{entry.image!r} cannot be written in the format {self.name!r}: {refusal}")
            made.add(file)
            make_folder(file.parent)
            with writing(file):
                lines = (_line(corners, text) for corners, text in rows_of(entry.target))
                file.write_text("".join(lines), "utf-8", newline="\n")

    def label_of(self, place: str) -> str:
        """See `LabelFormat.label_of`."""
        return Path(place).with_name(_text_name(place)).as_posix()

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        name = "the image name is empty" if not Path(image).name else unwritable(image, "\r\n\0")
        refusal = name or refuses_regions(target, self.name)
        if refusal or not isinstance(target, Polygons):
            return refusal
        if not all(len(corners) == 4 for corners in target.points):
            return "a region has not four corners"
        reasons = (unwritable(text, "\r\n\0", "text") for text in target.texts)
        return next((reason for reason in reasons if reason), None)


def _texts(folder: Path) -> dict[str, list[Path]]:
    """Return the files of regions under a folder, by name."""
    texts: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob(f"{_PREFIX}*.txt")):
        texts.setdefault(path.name, []).append(path)
    return texts


def _text_name(image: str) -> str:
    return f"{_PREFIX}{Path(image).stem}.txt"


def _read(path: Path) -> Polygons:
    return regions_of(_region(line, path, number) for number, line in read_lines(path))


def _region(line: str, path: Path, number: int) -> tuple[NDArray[np.float32], str]:
    *corners, text = line.split(",", 8)  # the text may hold commas
    if len(corners) != 8 or not all(map(_NUMBER.fullmatch, corners)):
        raise LabelFileError(f"expected eight numbers and a text, e.g. {IcdarDet.example}", path, number)
    values = np.array(corners, np.float64)
    if not (np.abs(values) <= _FARTHEST).all():
        raise LabelFileError(f"a corner lies further than {_FARTHEST:,} pixels away", path, number)
    return values.astype(np.float32).reshape(4, 2), text


def _line(corners: list[list[float]], text: str) -> str:
    return ",".join(str(number) for corner in corners for number in corner) + f",{text}\n"
