"""The table of synthetic text: a sample is a row of numbers, and every composer draws the same image from it.

What a sample looks like is decided once, by the sampler, on the CPU or on the device that trains. A composer (NumPy in
`compose`, a GPU kernel) only reads numbers: it walks over the output's pixels and asks the row what each one shows.

    pixel --matrix--> (u, v) in the text plane --wave, arc--> (u, v) along the baseline --glyphs--> signed distance
          --thresholds--> coverages of shadow, outline, fill --colours, textures, ground--> RGB

The text plane is measured in em of the label's font: u to the right from the first letter's pen, v down from the
baseline. A row knows no output size: its matrix starts from the output's unit square, so the same row fills any
bucket, and `aspect` says which one fits it.

`COLUMNS` names every number with its unit; `compose` says what is computed with it, in the order of the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

MAX_CHARACTERS = 64
"""Longest label, characters."""
MAX_GLYPHS = 96
"""Most glyphs of an image: the label's and its neighbours'."""

EM_PIXELS = 48
"""Size of the atlas: pixels an em."""
SPREAD_PIXELS = 8
"""How far from an outline the atlas knows the distance, in its pixels (a sixth of an em)."""
STEPS_PER_PIXEL = 127 / SPREAD_PIXELS
"""Signed distances are stored as round(128 + distance * STEPS_PER_PIXEL), positive within the letter."""
REACH = 0.1
"""Limit in em of weight + outline + half of a softness: further out an edge would meet the border of a glyph's box."""

COLUMNS: dict[str, int] = {
    # what is written
    "font": 1,  # number of the font in the atlas
    "seed": 1,  # 0 .. 2**24 - 1, of the sample; for whoever adds noise of their own
    # where: from the output to the text
    "aspect": 1,  # natural width / height of the image
    "matrix": 9,  # (x, y, 1) -> (u, v, w): x, y in 0..1 of the output, u / w and v / w in em of the text plane
    "wave": 3,  # v += amplitude (em) * sin(frequency (radians an em) * u + phase)
    "arc": 2,  # curvature (1 / em; 0 straight, else |.| >= 0.01; positive: the middle is higher), u of its middle
    # strokes, as thresholds of the signed distance
    "weight": 1,  # em added to the distance: bolder if positive
    "fill": 3,  # RGB 0..255
    "fill_opacity": 1,  # 0..1; 0 leaves the outline alone: hollow letters
    "fill_ramp": 2,  # brightness added per em to the right, and per em down (of 255)
    "outline": 1,  # width in em, 0 for none
    "outline_softness": 1,  # em over which its outer edge fades: a glow
    "outline_colour": 3,  # RGB 0..255
    "outline_opacity": 1,  # 0..1; 0 where there is none
    "shadow_steps": 1,  # 0 none, 1 a shadow, more: an extrusion drawn as so many copies
    "shadow_offset": 2,  # em to the right and down, of the last copy
    "shadow_softness": 1,  # em over which its edge fades
    "shadow_colour": 3,  # RGB 0..255
    "shadow_opacity": 1,  # 0..1
    "other_colour": 3,  # RGB of glyphs in layer 1: other text nearby
    "other_opacity": 1,  # 0..1
    # what lies behind the text and moves with it
    "plate": 4,  # left, top, right, bottom in em of the text plane (not bent by the arc)
    "plate_radius": 1,  # of its corners, em
    "plate_colour": 3,  # RGB 0..255
    "plate_opacity": 1,  # 0..1; 0 for none
    "plate_border": 1,  # width in em of a line of the fill's colour along its edge, half a width within; 0 for none
    "rule": 2,  # a line along the text in the fill's colour: v of its middle, half its thickness in em (0 for none)
    # the ground
    "ground": 1,  # number of the picture in the bank of grounds
    "ground_matrix": 6,  # (x, y, 1) -> pixel of the picture, x, y in 0..1 of the output; mirrored beyond its edges
    "ground_colour": 3,  # RGB 0..255
    "ground_strength": 1,  # how much of the picture's difference from its centre is added to the colour
    "ground_centre": 3,  # RGB 0..255, what the picture is taken to be on average
    "ground_ramp": 2,  # brightness added from left to right, and from top to bottom (of 255), 0 in the middle
    # texture on the letters
    "ink": 1,  # number of a picture in the bank of grounds
    "ink_matrix": 6,  # as ground_matrix
    "ink_strength": 1,  # as ground_strength, for what is painted: fill, outline, extrusion
    "ink_centre": 1,  # gray 0..255, what that picture is taken to be on average
    "show_through": 1,  # how much of the ground's difference from its colour shows through what is painted
}
"""Each column's size, in order; all are float32, whole numbers below 2**24 among them."""


def _slices() -> dict[str, slice]:
    slices, start = {}, 0
    for name, size in COLUMNS.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices


SLICES = _slices()
"""Which columns each name has."""
WIDTH = sum(COLUMNS.values())
"""Numbers in a row."""

PLACE = ("u", "v", "xu", "xv", "yu", "yv", "size", "layer")
"""What a glyph's place is made of.

    u, v            where its pen is on the baseline, em of the text plane
    xu, xv, yu, yv  from there to the glyph: x = xu (u' - u) + xv (v' - v), y = yu (u' - u) + yv (v' - v), in pixels of
                    the atlas, y down; turned, slanted, and scaled letters are other numbers here
    size            em of the text plane that an em of the glyph takes; distances are multiplied by it
    layer           0 for the label and what shares its style, 1 for other text
"""


def start(name: str) -> int:
    """Return a column's place in a row: what a kernel takes as a constant."""
    return int(SLICES[name].start)


@dataclass(frozen=True, eq=False)
class SynthParams:
    """The rows of a batch; arrays of NumPy, or tensors of torch on any device.

    Attributes:
        values: float32 (B, WIDTH), see `COLUMNS`.
        codes: int16 (B, MAX_CHARACTERS), the label as positions in the character set, -1 after its end. These are the
            truth, not what the text sampler drew: a font without lower case writes capitals.
        glyphs: int32 (B, G), glyphs of the atlas; -1 for none, anywhere in a row (a space has none).
        places: float32 (B, G, 8), see `PLACE`.
    """

    values: Floats
    codes: NDArray[np.int16]
    glyphs: NDArray[np.int32]
    places: Floats

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, name: str) -> Floats:
        """Return a column, (B,), or (B, its size)."""
        part = self.values[:, SLICES[name]]
        return part[:, 0] if COLUMNS[name] == 1 else part

    def rows(self, selection: slice | NDArray[np.int64]) -> SynthParams:
        """Return some of the rows."""
        return SynthParams(
            self.values[selection], self.codes[selection], self.glyphs[selection], self.places[selection]
        )


@dataclass(frozen=True, eq=False)
class GlyphTable:
    """What a composer reads of an atlas; arrays of NumPy, or tensors of torch.

    Attributes:
        distances: uint8 (N,), the signed distances of all glyphs, one after the other, each row by row.
        boxes: int32 (glyphs, 5): where a glyph's pixels begin in `distances`; left and top of its first pixel's centre
            from the pen on the baseline, in pixels, y down; width; height. Beyond its box a glyph is nowhere.
    """

    distances: NDArray[np.uint8]
    boxes: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class GroundTable:
    """What a composer reads of the grounds.

    Attributes:
        pictures: uint8 (N, S, S, 3), RGB, S a power of two; repeated by mirroring. A pixel of the output takes a third
            of a ground pixel to three: what is to be seen at several sizes is there several times.
        means: float32 (N, 8, 8, 3), mean RGB of each cell of S / 8 pixels; what the contrast guard reads.
        deviations: float32 (N, 8, 8), standard deviation of the brightness there.
    """

    pictures: NDArray[np.uint8]
    means: Floats
    deviations: Floats
