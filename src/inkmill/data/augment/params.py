"""Augmentation parameters: for each image of a batch a row of float32 numbers, the same for every engine.

    shrink    size in between as a share (0 for none), filter to make smaller, filter to make larger (`FILTERS`)
    space     3x3 matrix from a pixel of the output to the place in the input that it shows, (x, y, 1) in pixels with
              centres at whole numbers. This direction, because engines walk over the output and fetch; polygons, which
              go the other way, use the inverse (see `polygons`).
    waves     K x 5: displacement x, displacement y (pixels), frequency x, frequency y (radians a pixel), phase. A pixel
              of the output is first moved by the sum of displacement * sin(frequency . pixel + phase), then mapped by
              `space`.
    motion    length of a line in pixels (0 for none), its direction in radians
    light     by how much brightness rises, as a share of it, from the middle to the right and to the lower edge
    blur      sigma of a Gaussian, pixels
    colour    3x4 matrix from RGB and 1 to RGB, in 0..255
    noise     standard deviation, first place in the noise ring (`random_numbers.noise_ring`)
    jpeg      quality 1..100, 0 for none
    cutouts   N x 5: left, top, right, bottom (right and bottom exclusive), shade

What shows nothing of the input repeats its border. All parameters of a batch lie in one array, so that they travel to
a worker or a GPU in one copy; a spec without an op has no columns for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inkmill.data.augment.augmentation import Augmentation

Floats = NDArray[np.float32]

FILTERS = ("nearest", "linear", "cubic", "area")
"""Filters of `shrink`, by their numbers: OpenCV's, `area` only to make smaller."""

SUBSET_PASSES = ("shrink", "motion", "blur", "jpeg")
"""Passes that cost so much that torch runs them on the images that need one, not on the whole batch."""


@dataclass(frozen=True)
class ParamLayout:
    """Which columns the parameters have; fixed by the spec, and so the same for every batch.

    Attributes:
        shrink, space, light, colour, noise, jpeg: whether there are such columns.
        waves: number of waves, K.
        motion_radius: half the length of the longest line of a motion blur, in whole pixels; 0 without one.
        blur_radius: largest radius of a blur's kernel in pixels (3 sigma); 0 without blur.
        cutouts: number of rectangles, N.
        shares: for each of SUBSET_PASSES that runs, an upper bound of the share of images that need it; torch plans
            its memory by it.
    """

    shrink: bool = False
    space: bool = False
    waves: int = 0
    motion_radius: int = 0
    light: bool = False
    blur_radius: int = 0
    colour: bool = False
    noise: bool = False
    jpeg: bool = False
    cutouts: int = 0
    shares: Mapping[str, float] = field(default_factory=dict, hash=False)

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Which columns each part has; parts that are absent are missing."""
        sizes = {
            "shrink": 3 * self.shrink,
            "space": 9 * self.space,
            "waves": 5 * self.waves,
            "motion": 2 * (self.motion_radius > 0),
            "light": 2 * self.light,
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

    @cached_property
    def passes(self) -> tuple[str, ...]:
        """The passes over the pixels that engines run, in their order, whatever the order of the ops in the spec.

        Every engine loops over these names, so this is the one place that decides what runs. Resolution is lost first,
        for a warp shows every lost detail larger or smaller. Then the order is that of the physical world: the text's
        place, how it moves and is lit, the lens, the sensor, the file, and then what covers the picture.
        """
        shrink, warp = ("shrink",) if self.shrink else (), ("warp",) if self.space or self.waves else ()
        return (*shrink, *warp, *(name for name in self.columns if name not in ("shrink", "space", "waves")))

    def start(self, name: str) -> int:
        """Return the first column of a part, -1 where it is absent."""
        part = self.columns.get(name)
        return -1 if part is None else part.start

    @property
    def size(self) -> int:
        """Columns in all."""
        return max((part.stop for part in self.columns.values()), default=0)


@dataclass(frozen=True, eq=False)
class AugmentParams:
    """The parameters of a batch.

    Attributes:
        values: float32 (B, layout.size).
        layout: what the columns are.
        height, width: size in pixels of the images that they were sampled for.
    """

    values: Floats
    layout: ParamLayout
    height: int
    width: int

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, selection: slice | NDArray[np.int64]) -> AugmentParams:
        """Return the parameters of some of the images."""
        return AugmentParams(self.values[selection], self.layout, self.height, self.width)

    def check_images(self, shape: tuple[int, ...]) -> None:
        """Check that images of a shape (B, H, W, C) are those that these parameters were sampled for.

        Raises:
            ValueError: they are not.
        """
        expected = (len(self), self.height, self.width)
        if tuple(shape[:3]) != expected:
            raise ValueError(f"the params were sampled for a batch of {expected}, the images are {tuple(shape)}")

    def part(self, name: str) -> Floats | None:
        """Return one part, (B, its columns), or None where the spec has no such op."""
        columns = self.layout.columns.get(name)
        return None if columns is None else self.values[:, columns]

    @property
    def space(self) -> Floats | None:
        """float32 (B, 3, 3), output pixel to input pixel."""
        return self._shaped("space", 3, 3)

    @property
    def waves(self) -> Floats | None:
        """float32 (B, K, 5)."""
        return self._shaped("waves", self.layout.waves, 5)

    @property
    def colour(self) -> Floats | None:
        """float32 (B, 3, 4)."""
        return self._shaped("colour", 3, 4)

    @property
    def cutouts(self) -> Floats | None:
        """float32 (B, N, 5)."""
        return self._shaped("cutouts", self.layout.cutouts, 5)

    def _shaped(self, name: str, *shape: int) -> Floats | None:
        part = self.part(name)
        return None if part is None else part.reshape(-1, *shape)


@dataclass(frozen=True, eq=False)
class DeferredAugmentation:
    """The augmentation that a loader leaves to the training device: what to sample, not yet sampled.

    Sampling a strong augmentation keeps a core busy for half as long as decoding the picture. A GPU samples what it
    needs where it needs it, so that nothing of it passes through workers.

    Attributes:
        augmentation: what to sample.
        seed, epoch: of the run.
        index: int64 (B,), positions of the samples in the source.
        height, width: size of the resized images in pixels.
        batch_size: samples in a full batch; a device that compiles for it pads shorter ones.
        window: float64 (4, B), of images that are parts of larger pictures; see `windows.draw_windows`.
        resized: float32 (B, 3, 3), of such, from pixels of the whole pictures to those of the kept ones.
    """

    augmentation: Augmentation
    seed: int
    epoch: int
    index: NDArray[np.int64]
    height: int
    width: int
    batch_size: int
    window: NDArray[np.float64] | None = None
    resized: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def params(self) -> AugmentParams:
        """The parameters, sampled on the CPU, for those who apply them there."""
        return self.augmentation.sample(self.seed, self.epoch, self.index, self.height, self.width, self.window)


LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""ITU-R BT.601 weights of R, G and B in gray."""


def gray_gain(colour: Floats) -> Floats:
    """Return what colour matrices do to gray images: float32 (B, 2) of factor and summand.

    A gray pixel v is the colour (v, v, v), and the result is looked at in gray again: brightness, contrast and
    inversion stay, while hue and saturation vanish because gray has neither.
    """
    by_luma = np.einsum("c,bcd->bd", LUMA, colour)
    return np.stack([by_luma[:, :3].sum(axis=1), by_luma[:, 3]], axis=1)
