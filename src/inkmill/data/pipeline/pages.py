"""How a whole picture meets the input of a detector: both sides free, the aspect ratio kept.

A reader's input has one height. A page has none: what counts is how large its text becomes, so the short side is
brought to one length, and the long side follows up to a limit. Inputs are multiples of 32 pixels, which networks need
whose layers halve five times; what is added to the right and below is black.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.resize import Image, Resize, ResizeMode, resize

STEP = 32
"""Both sides of an input are multiples of this many pixels."""
MOST_ENLARGED = 2.0
"""A small picture is enlarged by this factor at most: more would show nothing more."""

_CODE = 1 << 16


@dataclass(frozen=True, slots=True)
class PageResize(Resize):
    """How whole pictures are brought to the input size; as `Resize`, but both sides are free.

    Attributes:
        height: the short side wanted, in pixels.
        width: the longest long side; a picture that would become longer becomes smaller instead.
    """

    mode: ResizeMode = "page"

    def __post_init__(self) -> None:
        if self.mode != "page" or not STEP <= self.height <= self.width < _CODE or self.channels not in (1, 3):
            raise ValueError(
                f"a page needs a short side of {STEP} or more, a long side no shorter, and 1 or 3 channels"
            )

    @property
    def most_pixels(self) -> int:
        """See Resize.most_pixels."""
        return -(-self.height // STEP) * -(-self.width // STEP) * STEP**2

    def page_size(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows that a picture of `width` x `height` pixels fills."""
        short, long = sorted((width, height))
        scale = min(self.height / short, self.width / long, MOST_ENLARGED)
        return max(1, round(width * scale)), max(1, round(height * scale))

    def padded_size(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of the input for a picture of `width` x `height` pixels."""
        columns, rows = self.page_size(width, height)
        return -(-columns // STEP) * STEP, -(-rows // STEP) * STEP

    def matrix(self, width: int, height: int) -> NDArray[np.float64]:
        """Return (3, 3), from a pixel of the picture to the input's that shows it, centres at whole numbers."""
        columns, rows = self.page_size(width, height)
        across, down = columns / width, rows / height
        return np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])

    def valid_width(self, width: int, height: int) -> int:
        """See Resize.valid_width."""
        return self.page_size(width, height)[0]

    def bucket_width(self, width: int, height: int) -> int:
        """See Resize.bucket_width."""
        return self.padded_size(width, height)[0]

    def bucket(self, width: int, height: int) -> int:
        """Return a number that stands for the input's size: pictures of one number can share a batch."""
        columns, rows = self.padded_size(width, height)
        return rows * _CODE + columns

    def shrunk(self, image: Image, out: Image | None = None) -> Image:
        """Return an image resized and not padded: uint8 (rows, columns, channels), in `out` where it is given."""
        columns, rows = self.page_size(image.shape[1], image.shape[0])
        return resize(image, columns, rows, out)

    def apply(self, image: Image, out: Image | None = None) -> tuple[Image, int]:
        """Resize and pad one image; see Resize.apply. The size depends on the picture."""
        if image.ndim != 3 or image.shape[2] != self.channels:
            raise ValueError(f"expected an image of {self.channels} channels, got shape {image.shape}")
        (columns, rows), padded = (size(image.shape[1], image.shape[0]) for size in (self.page_size, self.padded_size))
        if out is None:
            out = np.empty((*padded[::-1], self.channels), np.uint8)
        self.shrunk(image, out[:rows, :columns])
        out[rows:], out[:rows, columns:] = 0, 0
        return out, columns


def bucket_size(bucket: int) -> tuple[int, int]:
    """Return rows and columns of an input from `PageResize.bucket`."""
    return divmod(bucket, _CODE)


def page_sizes(sizes: NDArray[np.integer[Any]], pages: PageResize) -> NDArray[np.int64]:
    """Return rows and columns that pictures fill: int64 (N, 2), from int (N, 2) of their width and height."""
    found = [pages.page_size(width, height)[::-1] for width, height in np.asarray(sizes).tolist()]
    return np.array(found, np.int64).reshape(-1, 2)


def page_bytes(resize: Resize, sizes: NDArray[np.integer[Any]] | None) -> NDArray[np.int64] | None:
    """Return the bytes of every kept picture, int64 (N,); None where pictures are not kept as pages."""
    if not isinstance(resize, PageResize) or sizes is None:
        return None
    sides = page_sizes(sizes, resize)
    return sides[:, 0] * sides[:, 1] * resize.channels
