"""From a quad on a page to the reader's input, in one warp; long lines in parts, and their texts joined again.

A warp looks at a few pixels around each point. Where a line must shrink by more than two that would miss pixels, so it
is taken from the page halved as often as needed; each half is made once a page, when the first line asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.pages.geometry import Matrix, Points, sides, to_crop
from inkmill.pages.models import LineReader, LineText

Image = NDArray[np.uint8]

OVERLAP = 2.0
"""Of two parts of a long line, in heights of the line: more than any character is wide."""


@dataclass(frozen=True, slots=True, eq=False)
class Crop:
    """A line, or a part of one, as the reader takes it.

    Attributes:
        pixels: uint8 (height, width, channels): the input, padding included.
        valid: columns that hold the line.
        matrix: from the page's pixels to the crop's.
        line: which of the job's lines.
        way: which of the ways to read that line.
        part: which part of the line, from 0.
        offset: where the part begins, in columns of the whole line.
    """

    pixels: Image
    valid: int
    matrix: Matrix
    line: int
    way: int = 0
    part: int = 0
    offset: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the input; crops of one size can be one batch."""
        return self.pixels.shape[1], self.pixels.shape[0]

    @property
    def cost(self) -> int:
        """Pixels of the input."""
        width, height = self.size
        return width * height


class Halves:
    """A page and its halves.

    Args:
        pixels: uint8 (H, W, 3).
        channels: 1 for gray, 3 for RGB.
    """

    def __init__(self, pixels: Image, channels: int) -> None:
        if channels == 1:
            pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[:, :, None]  # type: ignore[assignment]
        self._levels = [pixels]
        self._channels = channels

    def crop(self, matrix: Matrix, scale: float, width: int, height: int) -> Image:
        """Return the uint8 (height, width, channels) crop that a matrix leads to.

        Args:
            matrix: from the page to the crop.
            scale: how much larger the crop is than the page there.
            width: columns.
            height: rows.
        """
        # 1. The smallest half that is not enlarged by it.
        level = max(0, math.floor(math.log2(1 / scale) + 1e-9)) if scale > 0 else 0
        while len(self._levels) <= level and min(self._levels[-1].shape[:2]) > 1:
            last = self._levels[-1]
            half = cv2.resize(last, (-(-last.shape[1] // 2), -(-last.shape[0] // 2)), interpolation=cv2.INTER_AREA)
            self._levels.append(half.reshape(*half.shape[:2], self._channels))  # type: ignore[arg-type]
        level = min(level, len(self._levels) - 1)
        source = self._levels[level]
        # 2. Pixel centres lie at half-integers on the page, at integers for OpenCV.
        grow_x, grow_y = (self._levels[0].shape[axis] / source.shape[axis] for axis in (1, 0))
        to_page = np.array([[grow_x, 0, grow_x / 2], [0, grow_y, grow_y / 2], [0, 0, 1]])
        to_centre = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1.0]])
        found = cv2.warpPerspective(
            source,
            to_centre @ matrix @ to_page,
            (width, height),
            flags=cv2.INTER_CUBIC,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return found.reshape(height, width, self._channels)  # type: ignore[return-value]


def cut(halves: Halves, corners: Points, reader: LineReader, line: int, way: int = 0) -> list[Crop]:
    """Return the crops of a line: one, or several that overlap where it is longer than the reader takes.

    Args:
        halves: the page.
        corners: float32 (4, 2), from the top left of the text on.
        reader: gives the sizes.
        line: which line of the page.
        way: which of the ways to read it.
    """
    width, height = (max(side, 1.0) for side in sides(corners))
    longest = reader.longest * height
    if width <= longest:
        size = reader.input_size(width, height)
        return [_crop(halves, to_crop(corners, size.valid, size.height), size, size.height / height, line, way)]
    # Parts of equal length, as few as possible, each overlapping the next.
    step_most = max(longest - OVERLAP * height, longest / 2)
    parts = math.ceil((width - longest) / step_most) + 1
    length = min(longest, (width + (parts - 1) * OVERLAP * height) / parts)
    size = reader.input_size(length, height)
    scale = size.valid / length
    whole = to_crop(corners, width * scale, size.height)
    found = []
    for part in range(parts):
        offset = round((width - length) * scale * part / (parts - 1))
        shift = np.array([[1, 0, -offset], [0, 1, 0], [0, 0, 1.0]])
        found.append(_crop(halves, shift @ whole, size, scale, line, way, part, offset))
    return found


def _crop(
    halves: Halves,
    matrix: Matrix,
    size: tuple[int, int, int],
    scale: float,
    line: int,
    way: int,
    part: int = 0,
    offset: int = 0,
) -> Crop:
    width, height, valid = size
    pixels = halves.crop(matrix, scale, valid, height)
    if width > valid:
        pixels = cv2.copyMakeBorder(pixels, 0, 0, 0, width - valid, cv2.BORDER_REPLICATE)  # type: ignore[assignment]
        pixels = pixels.reshape(height, width, -1)
    return Crop(pixels, valid, matrix, line, way, part, offset)


def join(crops: Sequence[Crop], texts: Sequence[LineText]) -> LineText:
    """Return the text of a line from those of its parts, in columns of the whole line.

    Where two parts overlap both have read the same characters; they are joined where the next character is farthest.
    """
    whole = _moved(texts[0], crops[0].offset)
    for before, crop, text in zip(crops, crops[1:], texts[1:], strict=False):
        following = _moved(text, crop.offset)
        low, high = crop.offset, before.offset + before.valid
        seam = _seam(whole, following, low, high)
        left, right = _centres(whole) < seam, _centres(following) >= seam
        whole = LineText(
            "".join(character for character, kept in zip(whole.text, left, strict=True) if kept)
            + "".join(character for character, kept in zip(following.text, right, strict=True) if kept),
            *(
                np.concatenate([getattr(whole, name)[left], getattr(following, name)[right]])
                for name in ("probabilities", "starts", "ends")
            ),
        )
    return whole


def _moved(text: LineText, offset: float) -> LineText:
    return LineText(text.text, text.probabilities, text.starts + offset, text.ends + offset)


def _centres(text: LineText) -> NDArray[np.float64]:
    return (text.starts.astype(np.float64) + text.ends) / 2


def _seam(a: LineText, b: LineText, low: float, high: float) -> float:
    """Return the column of the middle half of the overlap that is farthest from any character of both."""
    columns = np.linspace(low + (high - low) / 4, high - (high - low) / 4, 33)
    centres = np.concatenate([_centres(a), _centres(b)])
    if not len(centres):
        return float(columns[16])
    distances = np.abs(columns[:, None] - centres[None]).min(axis=1)
    return float(columns[int(distances.argmax())])
