"""The regions of whole pages as a set of their own: each region with a text becomes an upright crop with that text.

So `convert --crop` makes a set to train a reader on from one that a detector is trained on.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.decode import decode
from inkmill.data.sources.base import Source, fingerprint
from inkmill.data.types import Polygons, Text
from inkmill.errors import ConfigError, DataError, ImageError
from inkmill.registry import counted

_MOST_PIXELS = 1 << 26  # of a crop: corners come from label files
_SHORTEST = 2.0  # sides below this many pixels show nothing


class CropSource(Source):
    """The text regions of a set of pages.

    A region of four corners is taken as it is, its first edge (from the first corner to the second) up; of any other
    the smallest rectangle around it. A crop is encoded as PNG; its key is that of its page, and its number.

    Args:
        pages: a source of `Polygons`.

    Raises:
        ConfigError: its targets are something else.
        DataError: no region of it has a text.
    """

    def __init__(self, pages: Source) -> None:
        super().__init__(f"{pages.name} (crops)", pages.notes)
        self.pages = pages
        self._rows, left_out = _rows_of(pages)
        self.notes += tuple(f"{counted(count, 'region')} {reason} left out" for reason, count in left_out.items())
        if not len(self._rows):
            raise DataError(f"{pages.name}: no region has a text to cut out; {'; '.join(self.notes)}")
        self.notes += (f"{counted(len(self._rows), 'crop')} of {counted(len(pages), 'page')}",)
        self._page: tuple[int, NDArray[np.uint8] | ImageError] = (-1, ImageError(""))

    def __len__(self) -> int:
        return len(self._rows)

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        page, region = self._rows[self._checked(index)].tolist()
        points = self._polygons(page).points[region]
        try:
            crop = cut_out(self._decoded(page), points)
        except ImageError as error:
            raise DataError(f"{self.key(index)}: {error}") from error
        done, data = cv2.imencode(".png", crop)
        if not done:
            raise DataError(f"{self.key(index)}: a crop of {crop.shape[1]}x{crop.shape[0]} pixels cannot be encoded")
        return data.tobytes()

    def key(self, index: int) -> str:
        """See `Source.key`."""
        page, region = self._rows[self._checked(index)].tolist()
        return f"{PurePosixPath(self.pages.key(page)).with_suffix('')}-{region + 1:04d}.png"

    def target(self, index: int) -> Text:
        """See `Source.target`."""
        page, region = self._rows[self._checked(index)].tolist()
        return Text(self._polygons(page).texts[region])

    @property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return fingerprint("crops", self.pages.fingerprint)

    def _polygons(self, page: int) -> Polygons:
        target = self.pages.target(page)
        assert isinstance(target, Polygons)
        return target

    def _decoded(self, page: int) -> NDArray[np.uint8]:
        """Return a page in OpenCV's order of colours; the last one is kept, for its crops follow each other."""
        if self._page[0] != page:
            found: NDArray[np.uint8] | ImageError
            try:
                found = np.ascontiguousarray(decode(self.pages.image(page), 3)[:, :, ::-1])
            except ImageError as error:
                found = error
            self._page = (page, found)
        if isinstance(self._page[1], ImageError):
            raise self._page[1]
        return self._page[1]


def cut_out(page: NDArray[np.uint8], points: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the upright crop of a region.

    Args:
        page: uint8 (H, W, 3).
        points: float32 (N, 2), x and y of the corners, N >= 3.

    Raises:
        ImageError: the region is too small or too large to be cut out, or lies outside the page.
    """
    corners = points if len(points) == 4 else _upright(cv2.boxPoints(cv2.minAreaRect(points)).astype(np.float32))
    sides = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
    width, height = float(max(sides[0], sides[2])), float(max(sides[1], sides[3]))
    high, wide = page.shape[:2]
    inside = (corners[:, 0].max() > 0, corners[:, 0].min() < wide, corners[:, 1].max() > 0, corners[:, 1].min() < high)
    if not all(inside):
        raise ImageError(f"its region lies outside the page of {wide}x{high} pixels")
    if min(width, height) < _SHORTEST or width * height > _MOST_PIXELS:
        raise ImageError(f"its region of {width:,.0f}x{height:,.0f} pixels cannot be a line of text")
    size: tuple[int, int] = (round(width), round(height))
    goal = np.array([[0, 0], [size[0], 0], [size[0], size[1]], [0, size[1]]], np.float32)
    matrix = cv2.getPerspectiveTransform(np.ascontiguousarray(corners, np.float32), goal)
    crop = cv2.warpPerspective(page, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return crop.astype(np.uint8, copy=False)


def _upright(corners: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the corners of a rectangle from its top left one on: the edge that leads most to the right is the top."""
    edges = np.roll(corners, -1, axis=0) - corners
    return np.roll(corners, -int(np.argmax(edges[:, 0] / np.maximum(np.linalg.norm(edges, axis=1), 1e-6))), axis=0)


def _rows_of(pages: Source) -> tuple[NDArray[np.int64], Counter[Literal["to be ignored", "without a text"]]]:
    """Return int64 (N, 2), page and region of each crop, and how many regions are left out, by reason."""
    rows: list[tuple[int, int]] = []
    left_out = Counter[Literal["to be ignored", "without a text"]]()
    for page in range(len(pages)):
        target = pages.target(page)
        if not isinstance(target, Polygons):
            kind = type(target).__name__.lower()
            raise ConfigError(f"--crop cuts regions out of pages, and {pages.key(page)} of {pages.name} has {kind}")
        texts = target.texts or ("",) * len(target.points)
        for region, (ignore, text) in enumerate(zip(target.ignore, texts, strict=True)):
            if ignore or not text:
                left_out["to be ignored" if ignore else "without a text"] += 1
            else:
                rows.append((page, region))
    return np.array(rows, np.int64).reshape(-1, 2), left_out
