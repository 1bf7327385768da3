"""The normal form of an augmentation: for each image a row of numbers, the same for every engine.

    space     3x3 matrix from a pixel of the output to the place in the input that it shows, (x, y, 1) in pixels with
              centres at whole numbers. This direction, because engines walk over the output and fetch; polygons, which
              go the other way, use the inverse (see `polygons`).
    waves     K x 5: way x, way y (pixels), frequency x, frequency y (radians a pixel), phase. A pixel of the output is
              first moved by the sum of way * sin(frequency . pixel + phase), then mapped by `space`.
    blur      sigma of a Gaussian, pixels
    colour    3x4 matrix from RGB and 1 to RGB, in 0..255
    noise     standard deviation, place in the ring of noise (`random_numbers.noise_ring`)
    jpeg      quality 1..100, 0 for none
    cutouts   N x 5: left, top, right, bottom (right and bottom exclusive), shade

They are applied in this order whatever the order in the spec; within `space` and `colour` the spec's order counts.
What shows nothing of the input repeats its border. All of a row lies in one float32 array, so that a batch's table
travels to a worker or a GPU in one piece; a spec without an op has no columns for it, and engines skip that pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ParamLayout:
    """Which columns a table has; fixed by the spec, and so the same for every batch.

    Attributes:
        space, colour, noise, jpeg: whether the table has these columns.
        waves: number of waves, K.
        blur_radius: largest radius of a blur's kernel in pixels (3 sigma); 0 without blur.
        cutouts: number of rectangles, N.
        blur_share, jpeg_share: upper bound of the share of images that get one; engines plan their memory by it.
    """

    space: bool = False
    waves: int = 0
    blur_radius: int = 0
    colour: bool = False
    noise: bool = False
    jpeg: bool = False
    cutouts: int = 0
    blur_share: float = 0
    jpeg_share: float = 0

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Where each part lies in a row; parts that are absent are missing."""
        sizes = {
            "space": 9 * self.space,
            "waves": 5 * self.waves,
            "blur": int(self.blur_radius > 0),
            "colour": 12 * self.colour,
            "noise": 2 * self.noise,
            "jpeg": int(self.jpeg),
            "cutouts": 5 * self.cutouts,
        }
        columns, start = {}, 0
        for name, size in sizes.items():
            if size:
                columns[name] = slice(start, start + size)
            start += size
        return columns

    def start(self, name: str) -> int:
        """Return the first column of a part, -1 where it is absent."""
        part = self.columns.get(name)
        return -1 if part is None else part.start

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return max((part.stop for part in self.columns.values()), default=0)


@dataclass(frozen=True)
class AugmentParams:
    """The changes to a batch of images, as numbers.

    Attributes:
        values: float32 (B, layout.size).
        layout: what the columns are.
        height, width: size of the images in pixels, for which the table was drawn.
    """

    values: Floats
    layout: ParamLayout
    height: int
    width: int

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, selection: slice | NDArray[np.int64]) -> AugmentParams:
        """Return the table of some of the images."""
        return AugmentParams(self.values[selection], self.layout, self.height, self.width)

    def part(self, name: str) -> Floats | None:
        """Return one part, (B, its numbers), or None where the spec has no such change."""
        columns = self.layout.columns.get(name)
        return None if columns is None else self.values[:, columns]

    @property
    def space(self) -> Floats | None:
        """float32 (B, 3, 3), output pixel to input pixel."""
        part = self.part("space")
        return None if part is None else part.reshape(-1, 3, 3)

    @property
    def waves(self) -> Floats | None:
        """float32 (B, K, 5)."""
        part = self.part("waves")
        return None if part is None else part.reshape(-1, self.layout.waves, 5)

    @property
    def colour(self) -> Floats | None:
        """float32 (B, 3, 4)."""
        part = self.part("colour")
        return None if part is None else part.reshape(-1, 3, 4)

    @property
    def cutouts(self) -> Floats | None:
        """float32 (B, N, 5)."""
        part = self.part("cutouts")
        return None if part is None else part.reshape(-1, self.layout.cutouts, 5)


LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""ITU-R BT.601 weights of R, G and B in gray."""


def gray_gain(colour: Floats) -> Floats:
    """Return what colour matrices do to gray images: float32 (B, 2) of factor and summand.

    A gray pixel v is the colour (v, v, v), and the change's result is looked at in gray again: brightness, contrast and
    inversion stay, while hue and saturation vanish because gray has neither.
    """
    by_luma = np.einsum("c,bcd->bd", LUMA, colour)
    return np.stack([by_luma[:, :3].sum(axis=1), by_luma[:, 3]], axis=1)
