"""YOLO: `labels/a.txt` for `images/a.jpg`, lines of a class and of shares of the picture's sides.

    0 cx cy w h                 detection
    0 x1 y1 x2 y2 x3 y3 x4 y4   oriented boxes
    0 x1 y1 x2 y2 x3 y3 …       segmentation

There are no texts. A picture without a file has no regions: so is the format defined.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from inkmill.data.formats.base import Entry, list_images, register
from inkmill.data.formats.lines import read_lines
from inkmill.data.formats.per_picture import PerPicture, index_of, indexed
from inkmill.data.formats.regions import Corners, box_corners, corners_of, polygons_of
from inkmill.data.pipeline.decode import image_size
from inkmill.data.types import Polygons
from inkmill.errors import ImageError, LabelFileError
from inkmill.files import explain

_TRIED = 20
_HEADER_BYTES = 1 << 20  # of a picture; EXIF with a thumbnail comes before a JPEG's size


@register
class Yolo(PerPicture):
    """A folder with images/ and labels/."""

    name = "yolo_det"
    title = "YOLO (detection, oriented boxes, segmentation): text detection"
    example = "0 0.1 0.1 0.9 0.1 0.9 0.3 0.1 0.3 (class, then shares of the sides)"
    specificity = 40
    patterns = ("{stem}.txt",)

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; of the first pictures some may have no file."""
        files, seen = indexed(path), None
        for image in islice(list_images(path), _TRIED):
            found = self._file(path, image, files)
            try:
                if isinstance(found, Path) and self.parse(found, path / image).points:
                    seen = seen or f"{image} has its regions in {found.relative_to(path)}, as shares"
            except LabelFileError:
                return None
        return seen

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`."""
        files = index_of(path)
        for image in list_images(path):
            found = self._file(path, image, files)
            if isinstance(found, Path):
                yield Entry(image, self.parse(found, path / image), 1)
                continue
            self.remarks["pictures of YOLO without a file, which have no regions"] += 1
            yield Entry(image, Polygons((), (), ()), 1)

    def parse(self, file: Path, image: Path) -> Polygons:
        """See PerPicture.parse."""
        lines = [(number, line.split()) for number, line in read_lines(file)]
        size = _size(image, file) if lines else (1, 1)
        rows = []
        for number, fields in lines:
            try:
                rows.append((_corners(fields, size), "", False))
            except ValueError as error:
                raise LabelFileError(f"expected a class and shares, {self.example} ({error})", file, number) from None
        return polygons_of(rows)


def _corners(fields: list[str], size: tuple[int, int]) -> Corners:
    int(fields[0])
    shares = np.array([float(field) for field in fields[1:]])
    if len(shares) < 4 or len(shares) % 2 or not ((shares >= -0.5) & (shares <= 1.5)).all():
        raise ValueError(f"{' '.join(fields)[:60]!r}")
    if len(shares) == 4:
        x, y, width, height = (shares * (*size, *size)).tolist()
        return box_corners(x - width / 2, y - height / 2, width, height)
    return corners_of((shares.reshape(-1, 2) * size).tolist())


def _size(image: Path, file: Path) -> tuple[int, int]:
    """Return width and height of a picture, by its header: the file of regions knows shares alone."""
    try:
        with image.open("rb") as stream:
            return image_size(stream.read(_HEADER_BYTES))
    except (OSError, ImageError) as error:
        reason = explain(error) if isinstance(error, OSError) else error
        raise LabelFileError(
            f"the size of {image.name} cannot be read, and its regions are shares ({reason})", file
        ) from None
