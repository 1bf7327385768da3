"""From uniform random numbers to a table's numbers: what each op's draw means.

Written once for NumPy and for torch, whose functions of the same names do the same; `xp` is one or the other. Numbers
of a whole batch are float64 (B,) arrays, and matrices are those of `matrices`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from inkmill.data.augment import spec as ops
from inkmill.data.augment.matrices import Matrix, Number, dot, identity, plus, times
from inkmill.data.augment.random_numbers import NOISE_RING
from inkmill.data.augment.table import LUMA, ParamLayout

ELASTIC_WAVES = 3
_TURN = 2 * math.pi
_HORIZON = 0.25  # least depth within the picture: nothing is enlarged more than 4 times by perspective
_NEVER_ZERO = 1e-30

# From RGB to luma and two colour differences (NTSC), where hue is an angle.
_YIQ = [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]]
_RGB_OF_YIQ = np.linalg.inv(np.array(_YIQ)).tolist()
_LUMA = LUMA.tolist()


def draws_of(op: ops.Op) -> int:
    """Return how many random numbers an op draws, beside its coin."""
    draws = _OPS[type(op)][1]
    return draws if isinstance(draws, int) else draws(op)


def is_spatial(op: ops.Op) -> bool:
    """Return whether an op changes the matrix in space."""
    return type(op) in _SPACE


def is_colour(op: ops.Op) -> bool:
    """Return whether an op changes the matrix of colour."""
    return type(op) in _COLOUR


class Drawing:
    """A table in the making, for images of one size.

    Args:
        xp: numpy or torch.
        height, width: size of the images.
    """

    def __init__(self, xp: Any, height: int, width: int) -> None:
        self.xp, self.height, self.width = xp, height, width
        self.space: Matrix = identity(3, 3)
        self.colour: Matrix = identity(3, 4)
        self.blur_variance: Number = 0.0
        self.noise_variance: Number = 0.0
        self.noise_place: Number = 0.0
        self.jpeg: Number = 0.0
        self.waves: list[Number] = []
        self.cutouts: list[Number] = []
        self.active: Any = None

    def apply(self, op: ops.Op, active: Any, u: Any) -> None:
        """Add one op.

        Args:
            op: what to do.
            active: bool (B,), the images that get it.
            u: float64 (draws_of(op), B), its random numbers in [0, 1).
        """
        self.active = active
        _OPS[type(op)][0](op, self, u)

    @property
    def on(self) -> Number:
        """1 for the images that get the op, and 0 for the rest."""
        return self.xp.asarray(self.active, dtype=self.xp.float64)

    def chosen(self, limits: tuple[float, float], uniform: Number, otherwise: float) -> Number:
        """Return numbers from a range for the images that get the op, and `otherwise` for the rest."""
        low, high = limits
        return self.xp.where(self.active, low + (high - low) * uniform, otherwise)

    def move(self, backwards: Matrix) -> None:
        """Add a change in space, given as the matrix from output to input, centred."""
        columns = list(zip(*backwards, strict=True))
        self.space = [[dot(row, column) for column in columns] for row in self.space]

    def recolour(self, change: Callable[[Number, int], Number]) -> None:
        """Change each entry of the colour matrix, given with its column."""
        self.colour = [[change(entry, column) for column, entry in enumerate(row)] for row in self.colour]

    def columns(self, layout: ParamLayout) -> list[Number]:
        """Return the table's columns, layout.size of them."""
        parts: dict[str, Callable[[], list[Number]]] = {
            "space": self._centred_space,
            "waves": lambda: self.waves,
            "blur": lambda: [self.xp.sqrt(self.blur_variance)],
            "colour": lambda: [entry for row in self.colour for entry in row],
            "noise": lambda: [self.xp.sqrt(self.noise_variance), self.noise_place],
            "jpeg": lambda: [self.jpeg],
            "cutouts": lambda: self.cutouts,
        }
        return [number for name in layout.columns for number in parts[name]()]

    def _centred_space(self) -> list[Number]:
        """Move the matrices' origin from the centre of the image to its first pixel.

        A matrix that changes nothing stays so to the last bit, for engines skip such rows.
        """
        self._keep_horizon_outside()
        x, y = (self.width - 1) / 2, (self.height - 1) / 2
        first, second, third = self.space
        rows = [
            [plus(entry, times(x, depth)) for entry, depth in zip(first, third, strict=True)],
            [plus(entry, times(y, depth)) for entry, depth in zip(second, third, strict=True)],
            third,
        ]
        return [number for a, b, c in rows for number in (a, b, plus(plus(times(-x, a), times(-y, b)), c))]

    def _keep_horizon_outside(self) -> None:
        """Weaken perspectives that, composed with other changes, would show the horizon or what is behind it."""
        xp, (x, y, depth) = self.xp, self.space[2]
        if isinstance(x, float) and isinstance(y, float):
            return  # there is none
        nearest = (abs(x) * self.width + abs(y) * self.height) / 2
        weaker = xp.clip((depth - _HORIZON) / xp.clip(nearest, _NEVER_ZERO, None), 0, 1)
        depth = depth if isinstance(depth, float) else xp.clip(depth, _HORIZON, None)
        self.space[2] = [times(x, weaker), times(y, weaker), depth]


# Space: each matrix maps the output to the input, so it is the inverse of the change one sees.


def _rotate(op: ops.Rotate, drawing: Drawing, u: Any) -> None:
    angle = drawing.xp.deg2rad(drawing.chosen(op.degrees, u[0], 0.0))
    cosine, sine = drawing.xp.cos(angle), drawing.xp.sin(angle)
    drawing.move([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])


def _shear(op: ops.Shear, drawing: Drawing, u: Any) -> None:
    across, down = (
        drawing.xp.tan(drawing.xp.deg2rad(drawing.chosen(degrees, uniform, 0.0)))
        for degrees, uniform in ((op.degrees_x, u[0]), (op.degrees_y, u[1]))
    )
    drawing.move([[1.0, across, 0.0], [down, 1.0, 0.0], [0.0, 0.0, 1.0]])


def _scale(op: ops.Scale, drawing: Drawing, u: Any) -> None:
    across = 1 / drawing.chosen(op.factor, u[0], 1.0)
    down = across if op.keep_ratio else 1 / drawing.chosen(op.factor, u[1], 1.0)
    drawing.move([[across, 0.0, 0.0], [0.0, down, 0.0], [0.0, 0.0, 1.0]])


def _shift(op: ops.Shift, drawing: Drawing, u: Any) -> None:
    across = -drawing.width * drawing.chosen(op.x, u[0], 0.0)
    down = -drawing.height * drawing.chosen(op.y, u[1], 0.0)
    drawing.move([[1.0, 0.0, across], [0.0, 1.0, down], [0.0, 0.0, 1.0]])


def _perspective(op: ops.Perspective, drawing: Drawing, u: Any) -> None:
    across = drawing.chosen(op.x, u[0], 0.0) / drawing.width
    down = drawing.chosen(op.y, u[1], 0.0) / drawing.height
    drawing.move([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [across, down, 1.0]])


def _flip(op: ops.Flip, drawing: Drawing, u: Any) -> None:
    side = 1 - 2 * drawing.on
    across, down = (side, 1.0) if op.axis == "horizontal" else (1.0, side)
    drawing.move([[across, 0.0, 0.0], [0.0, down, 0.0], [0.0, 0.0, 1.0]])


def _curve(op: ops.Curve, drawing: Drawing, u: Any) -> None:
    way = drawing.height * drawing.chosen(op.amplitude, u[0], 0.0)
    frequency = _TURN / drawing.width * drawing.chosen(op.cycles, u[1], 0.0)
    drawing.waves += [0.0, way, frequency, 0.0, _TURN * u[2]]


def _elastic(op: ops.Elastic, drawing: Drawing, u: Any) -> None:
    xp = drawing.xp
    way = drawing.height / ELASTIC_WAVES * drawing.chosen(op.amplitude, u[0], 0.0)
    low, high = op.wavelength
    for wave in range(ELASTIC_WAVES):
        direction, heading, length, phase = (u[1 + 4 * wave + k] for k in range(4))
        frequency = _TURN / (drawing.height * (low + (high - low) * length))
        moves = [way * xp.cos(_TURN * direction), way * xp.sin(_TURN * direction)]
        runs = [frequency * xp.cos(_TURN * heading), frequency * xp.sin(_TURN * heading)]
        drawing.waves += [*moves, *runs, _TURN * phase]


# Colour: each change is applied to the matrix so far.


def _brightness(op: ops.Brightness, drawing: Drawing, u: Any) -> None:
    factor = drawing.chosen(op.factor, u[0], 1.0)
    drawing.recolour(lambda entry, column: times(entry, factor))


def _contrast(op: ops.Contrast, drawing: Drawing, u: Any) -> None:
    factor = drawing.chosen(op.factor, u[0], 1.0)
    summand = 127.5 * (1 - factor)
    drawing.recolour(lambda entry, column: plus(times(entry, factor), summand if column == 3 else 0.0))


def _saturate(drawing: Drawing, factor: Number) -> None:
    luma = [dot(_LUMA, column) for column in zip(*drawing.colour, strict=True)]
    less = 1 - factor  # written so that a factor of 1 is exactly nothing
    drawing.recolour(lambda entry, column: plus(entry, times(less, luma[column] - entry)))


def _saturation(op: ops.Saturation, drawing: Drawing, u: Any) -> None:
    _saturate(drawing, drawing.chosen(op.factor, u[0], 1.0))


def _gray(op: ops.Gray, drawing: Drawing, u: Any) -> None:
    _saturate(drawing, 1 - drawing.on)


def _hue(op: ops.Hue, drawing: Drawing, u: Any) -> None:
    angle = drawing.xp.deg2rad(drawing.chosen(op.degrees, u[0], 0.0))
    less, sine = drawing.xp.cos(angle) - 1, drawing.xp.sin(angle)
    turned = []
    for column in zip(*drawing.colour, strict=True):
        first, second = dot(_YIQ[1], column), dot(_YIQ[2], column)
        turned.append((times(less, first) - times(sine, second), times(sine, first) + times(less, second)))
    drawing.colour = [
        [plus(entry, back[1] * turn[0] + back[2] * turn[1]) for entry, turn in zip(row, turned, strict=True)]
        for row, back in zip(drawing.colour, _RGB_OF_YIQ, strict=True)
    ]


def _invert(op: ops.Invert, drawing: Drawing, u: Any) -> None:
    side, summand = 1 - 2 * drawing.on, 255 * drawing.on
    drawing.recolour(lambda entry, column: plus(times(entry, side), summand if column == 3 else 0.0))


def _blur(op: ops.Blur, drawing: Drawing, u: Any) -> None:
    if op.choices:
        sigma = op.choices[0] + 0 * u[0]
        for number, choice in enumerate(op.choices[1:], 1):
            sigma = drawing.xp.where(u[0] * len(op.choices) >= number, choice, sigma)
        sigma = drawing.xp.where(drawing.active, sigma, 0.0)
    else:
        sigma = drawing.chosen(op.sigma, u[0], 0.0)
    drawing.blur_variance = plus(drawing.blur_variance, sigma**2)  # one Gaussian after another is a Gaussian


def _noise(op: ops.Noise, drawing: Drawing, u: Any) -> None:
    drawing.noise_variance = plus(drawing.noise_variance, drawing.chosen(op.std, u[0], 0.0) ** 2)
    drawing.noise_place = drawing.xp.floor(u[1] * NOISE_RING)


def _jpeg(op: ops.Jpeg, drawing: Drawing, u: Any) -> None:
    quality = drawing.xp.round(drawing.chosen(op.quality, u[0], 0.0))
    drawing.jpeg = drawing.xp.where(quality > 0, quality, drawing.jpeg)


def _cutout(op: ops.Cutout, drawing: Drawing, u: Any) -> None:
    height, width = drawing.height, drawing.width
    for first in range(0, 5 * op.count, 5):
        x, y, across, down, shade = (u[first + k] for k in range(5))
        half_width = height / 2 * drawing.chosen(op.size, across, 0.0)
        half_height = height / 2 * drawing.chosen(op.size, down, 0.0)
        places = ((x * width, half_width, width), (y * height, half_height, height))
        for sign in (-1, 1):
            for centre, half, limit in places:
                drawing.cutouts.append(drawing.xp.clip(drawing.xp.round(centre + sign * half), 0, limit))
        drawing.cutouts.append(drawing.chosen(op.shade, shade, 0.0))


_Apply = Callable[[Any, Drawing, Any], None]
_Draws = int | Callable[[Any], int]
_SPACE: dict[type[ops.Op], tuple[_Apply, _Draws]] = {
    ops.Rotate: (_rotate, 1),
    ops.Shear: (_shear, 2),
    ops.Scale: (_scale, 2),
    ops.Shift: (_shift, 2),
    ops.Perspective: (_perspective, 2),
    ops.Flip: (_flip, 0),
}
_COLOUR: dict[type[ops.Op], tuple[_Apply, _Draws]] = {
    ops.Brightness: (_brightness, 1),
    ops.Contrast: (_contrast, 1),
    ops.Saturation: (_saturation, 1),
    ops.Hue: (_hue, 1),
    ops.Invert: (_invert, 0),
    ops.Gray: (_gray, 0),
}
_OPS: dict[type[ops.Op], tuple[_Apply, _Draws]] = {
    **_SPACE,
    **_COLOUR,
    ops.Curve: (_curve, 3),
    ops.Elastic: (_elastic, 1 + 4 * ELASTIC_WAVES),
    ops.Blur: (_blur, 1),
    ops.Noise: (_noise, 2),
    ops.Jpeg: (_jpeg, 1),
    ops.Cutout: (_cutout, lambda op: 5 * op.count),
}
