"""How an image meets the model's input: the one definition of resize.

Most systems train with one resize and read with another, and lose accuracy that nobody can explain. So inkmill owns one
definition:

    plain linear interpolation, pixel centres at half-integers, borders repeated,
    in steps that shrink a side to no less than its half

Linear interpolation looks at two pixels a side. A step of at most two therefore looks at every pixel (a step of exactly
two is the mean of 2x2), and text keeps its thin strokes, where a single step would skip most of a large picture. Any
library has this operation, so every back end can follow the definition; OpenCV does it in 10 us for 180x45x3 ->
128x32. An antialiasing filter (Pillow's BILINEAR, torch's antialias) looks a little softer and cost 54 us here, more
than decoding and augmentation together.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
ResizeMode = Literal["stretch", "pad", "height", "aspect", "page"]

BUCKET_STEP = 32
"""Widths of mode "height" are multiples of this, so that a batch needs few different shapes."""

_ASPECT_BUCKETS = ((2.0, 2.0), (3.0, 1.5), (3.5, 1.25), (4.0, 1.0))
"""Width and height of mode "aspect" for pictures 1, 2, 3 and 4 times as wide as high, in heights of a long line: 64 x
64, 96 x 48, 112 x 40 and 128 x 32 at a height of 32. They have nearly one area, so each costs a model the same."""

_VERSION = 2  # raise it when the same image would be resized to other pixels: cache are rebuilt then


@dataclass(frozen=True, slots=True)
class Resize:
    """How images are brought to the input size. The result depends on the image alone, never on its batch.

    Attributes:
        height: rows of the input, in pixels; in mode "aspect" those of a line 4 times as wide as high or wider.
        width: columns of the input; in modes "height" and "aspect" the largest.
        channels: 1 for gray, 3 for RGB.
        mode: "stretch" loses the aspect ratio; "pad" keeps it and repeats the last column up to `width` (a text too
            long for it is squeezed); "height" keeps it and pads only up to the next multiple of 32 columns; "aspect"
            stretches to the size that is nearest by aspect ratio (SVTRv2's multi-size resizing, Du et al. 2024,
            arXiv:2411.15858): r = round(w / h), 64 x 64 for r = 1, 96 x 48 for 2, 112 x 40 for 3, 128 x 32 for 4 and
            32r x 32 beyond, at a height of 32. No two of these sizes have one width, so the width names the bucket.
    """

    height: int
    width: int
    channels: Literal[1, 3] = 1
    mode: ResizeMode = "stretch"

    def __post_init__(self) -> None:
        if self.mode not in ("stretch", "pad", "height", "aspect"):
            raise ValueError(f"unknown fit {self.mode!r}; known: stretch, pad, height, aspect")
        if self.height < 1 or self.width < 1 or self.channels not in (1, 3):
            raise ValueError(f"a fit needs a size of at least 1x1 and 1 or 3 channels, not {self}")
        if self.mode == "aspect" and (self.height % 4 or self.width % self.height or self.width < 4 * self.height):
            raise ValueError(
                "the fit aspect needs a height that is a multiple of 4, and for the width a multiple of the height, 4 "
                f"times or more, not {self}"
            )

    def digest(self) -> str:
        """Return 16 hex digits that stand for what this fit does to any image; cache are named by it."""
        return hashlib.sha256(repr((_VERSION, *astuple(self))).encode()).hexdigest()[:16]

    @property
    def buckets(self) -> bool:
        """Whether inputs have several sizes; a batch then holds images of one."""
        return self.mode in ("height", "aspect")

    def widths(self) -> list[int]:
        """Return every width that an input can have, ascending."""
        if self.mode == "height":
            return [*range(BUCKET_STEP, self.width, BUCKET_STEP), self.width]
        if self.mode == "aspect":
            short = [round(wide * self.height) for wide, _ in _ASPECT_BUCKETS]
            return [*short, *range(5 * self.height, self.width + 1, self.height)]
        return [self.width]

    def rows(self, width: int) -> int:
        """Return the height of an input that is `width` wide."""
        if self.mode != "aspect":
            return self.height
        return next((round(h * self.height) for w, h in _ASPECT_BUCKETS if w * self.height == width), self.height)

    def sizes(self) -> list[tuple[int, int]]:
        """Return every (height, width) that an input can have."""
        return [(self.rows(width), width) for width in self.widths()]

    @property
    def most_pixels(self) -> int:
        """Pixels of the largest input."""
        return max(height * width for height, width in self.sizes())

    def valid_width(self, width: int, height: int) -> int:
        """Return how many columns of the input an image of `width` x `height` fills; the rest is padding."""
        if self.mode in ("stretch", "aspect"):
            return self.bucket_width(width, height)
        return min(-(-self.height * width // height), self.width)

    def bucket_width(self, width: int, height: int) -> int:
        """Return the width of the input for an image of `width` x `height`, padding included."""
        if self.mode == "aspect":
            ratio = max(1, (2 * width + height) // (2 * height))  # rounded half up
            return min(round((_ASPECT_BUCKETS[ratio - 1][0] if ratio < 5 else ratio) * self.height), self.width)
        if self.mode != "height":
            return self.width
        return min(-(-self.valid_width(width, height) // BUCKET_STEP) * BUCKET_STEP, self.width)

    def apply(self, image: Image, out: Image | None = None) -> tuple[Image, int]:
        """Resize and pad one image.

        Args:
            image: uint8 (h, w, channels).
            out: where to write the result; new memory where None.

        Returns:
            uint8 (rows of the bucket, its width, channels), contiguous, and the number of columns that hold picture.
        """
        if image.ndim != 3 or image.shape[2] != self.channels:
            raise ValueError(f"expected an image of {self.channels} channels, got shape {image.shape}")
        height, width = image.shape[:2]
        valid, columns = self.valid_width(width, height), self.bucket_width(width, height)
        if out is None:
            out = np.empty((self.rows(columns), columns, self.channels), np.uint8)
        resize_and_pad(image, valid, out)
        return out, valid


def resize_and_pad(image: Image, valid: int, out: Image) -> None:
    """Resize an image to the first `valid` columns of `out`, and repeat the last of them to its end."""
    resize(image, valid, len(out), out[:, :valid])
    if out.shape[1] > valid:
        out[:, valid:] = out[:, valid - 1 : valid]


def resize(image: Image, width: int, height: int, out: Image | None = None) -> Image:
    """Resize by linear interpolation in steps of at most two; see the head of this file.

    Args:
        image: uint8 (h, w, channels).
        width: columns wanted.
        height: rows wanted.
        out: where to write the result; new memory where None.

    Returns:
        uint8 (height, width, channels): `out`.
    """
    if out is None:
        out = np.empty((height, width, image.shape[2]), np.uint8)
    rows, columns = image.shape[:2]
    if columns > 2 * width or rows > 2 * height:
        for size in resize_steps(columns, rows, width, height)[:-1]:
            image = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)  # type: ignore[assignment]
    if image.shape[:2] == (height, width):
        out[...] = image
    else:
        cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    return out


def resize_steps(columns: int, rows: int, width: int, height: int) -> list[tuple[int, int]]:
    """Return the sizes, (columns, rows), that `resize` goes through; the last one is (width, height).

    While a side is more than twice its goal it is halved, rounding up; the last step brings both sides to their goals.
    """
    steps = []
    while columns > 2 * width or rows > 2 * height:
        columns = -(-columns // 2) if columns > 2 * width else columns
        rows = -(-rows // 2) if rows > 2 * height else rows
        steps.append((columns, rows))
    if (columns, rows) != (width, height):
        steps.append((width, height))
    return steps
