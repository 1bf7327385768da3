"""Sampling: from uniform random numbers to parameters, one function for each op.

Written once for NumPy and for torch, whose functions of the same names do the same; `xp` is one or the other.

Matrices of a whole batch are nested lists whose entries are float64 (B,) arrays or plain floats. Most entries of a
change in space or colour are 0 or 1 for all images. As plain floats they cost nothing, and a compiler sees nothing but
arithmetic on vectors. Arrays are shared between entries and never changed in place. Twice as fast as NumPy's einsum on
stacked matrices, and the same lines run with torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from inkmill.data.augment import ops
from inkmill.data.augment.params import LUMA, SUBSET_PASSES, ParamLayout
from inkmill.data.augment.random_numbers import NOISE_RING

Number = Any
"""float64 (B,), of NumPy or torch, or a plain float for all images."""
Matrix = list[list[Number]]

ELASTIC_WAVES = 3
_TURN = 2 * math.pi
_HORIZON = 0.25  # smallest homogeneous w within the image: perspective enlarges nothing more than 4 times
_NEVER_ZERO = 1e-30

# From RGB to luma and two colour differences (NTSC), where hue is an angle.
_YIQ = [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]]
_RGB_OF_YIQ = np.linalg.inv(np.array(_YIQ)).tolist()
_LUMA = LUMA.tolist()


class ParamSampler:
    """Collects the parameters of a batch, op after op, for images of one size.

    Args:
        xp: numpy or torch.
        height, width: size of the images in pixels.
        window: what `windows.draw_windows` drew, (4, B), where the images are parts of larger pictures; else None.
    """

    def __init__(self, xp: Any, height: int, width: int, window: Any = None) -> None:
        self.xp = xp
        self.height = height
        self.width = width
        self.window = window
        self.space: Matrix = _identity(3, 3)
        self.colour: Matrix = _identity(3, 4)
        self.shrink: list[Number] = [0.0, 0.0, 0.0]
        self.motion: list[Number] = [0.0, 0.0]
        self.light: list[Number] = [0.0, 0.0]
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
            op: what to add.
            active: bool (B,), the images that get it.
            u: float64 (numbers_of(op), B), its random numbers in [0, 1).
        """
        self.active = active
        _SAMPLERS[type(op)].sample(op, self, u)

    @property
    def on(self) -> Number:
        """1 for the images that get the op, and 0 for the rest."""
        return self.xp.asarray(self.active, dtype=self.xp.float64)

    def uniform(self, limits: tuple[float, float], u: Number, otherwise: float) -> Number:
        """Return numbers from a range for the images that get the op, and `otherwise` for the rest."""
        low, high = limits
        return self.xp.where(self.active, low + (high - low) * u, otherwise)

    def transform(self, backwards: Matrix) -> None:
        """Add a change in space, given as the matrix from output to input with the origin in the centre."""
        columns = list(zip(*backwards, strict=True))
        self.space = [[_dot(row, column) for column in columns] for row in self.space]

    def map_colour(self, change: Callable[[Number, int], Number]) -> None:
        """Change each entry of the colour matrix, given with its column."""
        self.colour = [[change(entry, column) for column, entry in enumerate(row)] for row in self.colour]

    def columns(self, layout: ParamLayout) -> list[Number]:
        """Return the columns of the parameters, layout.size of them."""
        parts: dict[str, Callable[[], list[Number]]] = {
            "shrink": lambda: self.shrink,
            "space": self._centred_space,
            "waves": lambda: self.waves,
            "motion": lambda: self.motion,
            "light": lambda: self.light,
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
        # Ops turn and scale about the centre; engines count pixels from the first. So: shift there, map, shift back.
        x, y = (self.width - 1) / 2, (self.height - 1) / 2
        # Of a part of a larger picture, it is the part's centre there, and its pixels are of another size.
        to_x, to_y, across, down = (x, y, 1.0, 1.0) if self.window is None else self.window
        first, second, third = self.space
        rows = [
            [_plus(_times(across, entry), _times(to_x, w)) for entry, w in zip(first, third, strict=True)],
            [_plus(_times(down, entry), _times(to_y, w)) for entry, w in zip(second, third, strict=True)],
            third,
        ]
        return [number for a, b, c in rows for number in (a, b, _plus(_plus(_times(-x, a), _times(-y, b)), c))]

    def _keep_horizon_outside(self) -> None:
        """Weaken perspectives that, composed with other ops, would show the horizon or what is behind it."""
        xp = self.xp
        x, y, w = self.space[2]
        if isinstance(x, float) and isinstance(y, float):
            return  # no perspective
        # The smallest w lies in a corner: w - nearest. If that is below the limit, x and y shrink until it is not.
        nearest = (abs(x) * self.width + abs(y) * self.height) / 2
        weaker = xp.clip((w - _HORIZON) / xp.clip(nearest, _NEVER_ZERO, None), 0, 1)
        w = w if isinstance(w, float) else xp.clip(w, _HORIZON, None)
        self.space[2] = [_times(x, weaker), _times(y, weaker), w]


def _identity(rows: int, columns: int) -> Matrix:
    return [[float(row == column) for column in range(columns)] for row in range(rows)]


def _times(a: Number, b: Number) -> Number:
    """Return a product that is free where a factor is the plain 0 or 1."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, float) and one in (0, 1):
            return other if one else 0.0
    return a * b


def _plus(a: Number, b: Number) -> Number:
    """Return a sum that is free where a summand is the plain 0."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, float) and one == 0:
            return other
    return a + b


def _dot(row: Iterable[Number], column: Iterable[Number]) -> Number:
    """Return the sum of the products of two vectors' entries."""
    total: Number = 0.0
    for a, b in zip(row, column, strict=True):
        total = _plus(total, _times(a, b))
    return total


# One function for each op. `u` is float64 (numbers, B): the random numbers of the op, of which it takes as many as its
# registration says. Their order and number are part of the format: another order gives other images for the same seed.

_Sample = Callable[[Any, ParamSampler, Any], None]


class _OpSampler(NamedTuple):
    """How an op is sampled: into which part of the parameters, with how many random numbers, and by what."""

    part: str
    numbers: int | Callable[[Any], int]
    sample: _Sample


_SAMPLERS: dict[type[ops.Op], _OpSampler] = {}


def _samples(op: type[ops.Op], part: str, numbers: int | Callable[[Any], int]) -> Callable[[_Sample], _Sample]:
    def register(sample: _Sample) -> _Sample:
        _SAMPLERS[op] = _OpSampler(part, numbers, sample)
        return sample

    return register


def part_of(op: ops.Op) -> str:
    """Return the name of the part of the parameters that an op writes to."""
    return _SAMPLERS[type(op)].part


def numbers_of(op: ops.Op) -> int:
    """Return how many random numbers an op uses for each sample, beside the one that decides whether it happens."""
    numbers = _SAMPLERS[type(op)].numbers
    return numbers if isinstance(numbers, int) else numbers(op)


def layout_of(entries: list[tuple[ops.Op, float]]) -> ParamLayout:
    """Return the layout of the parameters of some ops, each given with the probability that an image gets it."""
    op_list = [op for op, _ in entries]
    kinds = [type(op) for op in op_list]
    chances: dict[str, float] = {}
    for op, chance in entries:
        chances[part_of(op)] = chances.get(part_of(op), 0.0) + chance
    sigmas = [op.largest for op in op_list if isinstance(op, ops.Blur)]
    return ParamLayout(
        shrink="shrink" in chances,
        space="space" in chances,
        light="light" in chances,
        motion_radius=max((math.ceil(op.length[1] / 2) for op in op_list if isinstance(op, ops.MotionBlur)), default=0),
        waves=kinds.count(ops.Curve) + ELASTIC_WAVES * kinds.count(ops.Elastic),
        blur_radius=math.ceil(3 * math.hypot(*sigmas)),
        colour="colour" in chances,
        noise="noise" in chances,
        jpeg="jpeg" in chances,
        cutouts=sum(op.count for op in op_list if isinstance(op, ops.Cutout)),
        shares={part: min(1.0, chances[part]) for part in SUBSET_PASSES if part in chances},
    )


# Space: each matrix maps the output to the input, so it is the inverse of the change one sees.


@_samples(ops.Rotate, "space", 1)
def _rotate(op: ops.Rotate, sampler: ParamSampler, u: Any) -> None:
    angle = sampler.xp.deg2rad(sampler.uniform(op.degrees, u[0], 0.0))
    cosine, sine = sampler.xp.cos(angle), sampler.xp.sin(angle)
    sampler.transform([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])


@_samples(ops.Shear, "space", 2)
def _shear(op: ops.Shear, sampler: ParamSampler, u: Any) -> None:
    across, down = (
        sampler.xp.tan(sampler.xp.deg2rad(sampler.uniform(degrees, number, 0.0)))
        for degrees, number in ((op.degrees_x, u[0]), (op.degrees_y, u[1]))
    )
    sampler.transform([[1.0, across, 0.0], [down, 1.0, 0.0], [0.0, 0.0, 1.0]])


@_samples(ops.Scale, "space", 2)
def _scale(op: ops.Scale, sampler: ParamSampler, u: Any) -> None:
    # Twice as large means fetching from half as far.
    across = 1 / sampler.uniform(op.factor, u[0], 1.0)
    down = across if op.keep_ratio else 1 / sampler.uniform(op.factor, u[1], 1.0)
    sampler.transform([[across, 0.0, 0.0], [0.0, down, 0.0], [0.0, 0.0, 1.0]])


@_samples(ops.Shift, "space", 2)
def _shift(op: ops.Shift, sampler: ParamSampler, u: Any) -> None:
    across = -sampler.width * sampler.uniform(op.x, u[0], 0.0)
    down = -sampler.height * sampler.uniform(op.y, u[1], 0.0)
    sampler.transform([[1.0, 0.0, across], [0.0, 1.0, down], [0.0, 0.0, 1.0]])


@_samples(ops.Perspective, "space", 2)
def _perspective(op: ops.Perspective, sampler: ParamSampler, u: Any) -> None:
    across = sampler.uniform(op.x, u[0], 0.0) / sampler.width
    down = sampler.uniform(op.y, u[1], 0.0) / sampler.height
    sampler.transform([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [across, down, 1.0]])


@_samples(ops.Flip, "space", 0)
def _flip(op: ops.Flip, sampler: ParamSampler, u: Any) -> None:
    side = 1 - 2 * sampler.on  # -1 mirrors, 1 does nothing
    across, down = (side, 1.0) if op.axis == "horizontal" else (1.0, side)
    sampler.transform([[across, 0.0, 0.0], [0.0, down, 0.0], [0.0, 0.0, 1.0]])


# Crops: parts of larger pictures are drawn beforehand (see `windows`); else the part is one of the image itself.


@_samples(ops.RandomResizedCrop, "space", 4)
def _random_resized_crop(op: ops.RandomResizedCrop, sampler: ParamSampler, u: Any) -> None:
    if sampler.window is None:
        across, down = part_of_area(op, sampler.xp, u, 1.0, 1.0)
        _show_part(sampler, across, down, u[2], u[3])


@_samples(ops.Crop, "space", 5)
def _crop(op: ops.Crop, sampler: ParamSampler, u: Any) -> None:
    if sampler.window is None:
        side = 1 / log_uniform(op.scale, sampler.xp, u[0])
        _show_part(sampler, side, side, u[3], u[4])


def _show_part(sampler: ParamSampler, across: Number, down: Number, x: Number, y: Number) -> None:
    """Show a part of the image, given as shares of its sides, at the place (x, y) of those that there are, 0..1."""
    across, down = (sampler.xp.where(sampler.active, share, 1.0) for share in (across, down))
    moved_x, moved_y = (
        sampler.xp.where(sampler.active, (1 - share) * (place - 0.5) * side, 0.0)
        for share, place, side in ((across, x, sampler.width), (down, y, sampler.height))
    )
    sampler.transform([[across, 0.0, moved_x], [0.0, down, moved_y], [0.0, 0.0, 1.0]])


def log_uniform(limits: tuple[float, float], xp: Any, u: Number) -> Number:
    """Return numbers from a range, even in their logarithm."""
    low, high = math.log(limits[0]), math.log(limits[1])
    return xp.exp(low + (high - low) * u)


def part_of_area(op: ops.RandomResizedCrop, xp: Any, u: Any, width: Number, height: Number) -> tuple[Number, Number]:
    """Return the sides of a part of a picture of these sides, by the first two of the op's random numbers."""
    area = op.area[0] + (op.area[1] - op.area[0]) * u[0]
    wider = xp.sqrt(log_uniform(op.aspect, xp, u[1]))
    side = xp.sqrt(area)
    return width * xp.clip(side * wider, None, 1.0), height * xp.clip(side / wider, None, 1.0)


# Waves: five numbers each, see `params`. An image without the op has a displacement of 0.


@_samples(ops.Curve, "waves", 3)
def _curve(op: ops.Curve, sampler: ParamSampler, u: Any) -> None:
    displacement = sampler.height * sampler.uniform(op.amplitude, u[0], 0.0)
    frequency = _TURN / sampler.width * sampler.uniform(op.cycles, u[1], 0.0)
    sampler.waves += [0.0, displacement, frequency, 0.0, _TURN * u[2]]


@_samples(ops.Elastic, "waves", 1 + 4 * ELASTIC_WAVES)
def _elastic(op: ops.Elastic, sampler: ParamSampler, u: Any) -> None:
    xp = sampler.xp
    # The amplitude is shared among the waves, so that together they move a point by it at most.
    displacement = sampler.height / ELASTIC_WAVES * sampler.uniform(op.amplitude, u[0], 0.0)
    low, high = op.wavelength
    for wave in range(ELASTIC_WAVES):
        direction, heading, length, phase = (u[1 + 4 * wave + k] for k in range(4))
        frequency = _TURN / (sampler.height * (low + (high - low) * length))
        moves = [displacement * xp.cos(_TURN * direction), displacement * xp.sin(_TURN * direction)]
        runs = [frequency * xp.cos(_TURN * heading), frequency * xp.sin(_TURN * heading)]
        sampler.waves += [*moves, *runs, _TURN * phase]


# Colour: each op is applied to the matrix so far.


@_samples(ops.Brightness, "colour", 1)
def _brightness(op: ops.Brightness, sampler: ParamSampler, u: Any) -> None:
    factor = sampler.uniform(op.factor, u[0], 1.0)
    sampler.map_colour(lambda entry, column: _times(entry, factor))


@_samples(ops.Contrast, "colour", 1)
def _contrast(op: ops.Contrast, sampler: ParamSampler, u: Any) -> None:
    factor = sampler.uniform(op.factor, u[0], 1.0)
    summand = 127.5 * (1 - factor)
    sampler.map_colour(lambda entry, column: _plus(_times(entry, factor), summand if column == 3 else 0.0))


def _saturate(sampler: ParamSampler, factor: Number) -> None:
    # Luma of the colours so far, as a row of the matrix; each channel moves towards it or away from it.
    luma = [_dot(_LUMA, column) for column in zip(*sampler.colour, strict=True)]
    less = 1 - factor  # written so that a factor of 1 is exactly nothing
    sampler.map_colour(lambda entry, column: _plus(entry, _times(less, luma[column] - entry)))


@_samples(ops.Saturation, "colour", 1)
def _saturation(op: ops.Saturation, sampler: ParamSampler, u: Any) -> None:
    _saturate(sampler, sampler.uniform(op.factor, u[0], 1.0))


@_samples(ops.Gray, "colour", 0)
def _gray(op: ops.Gray, sampler: ParamSampler, u: Any) -> None:
    _saturate(sampler, 1 - sampler.on)


@_samples(ops.Hue, "colour", 1)
def _hue(op: ops.Hue, sampler: ParamSampler, u: Any) -> None:
    angle = sampler.xp.deg2rad(sampler.uniform(op.degrees, u[0], 0.0))
    # In YIQ hue is the angle of (I, Q). Only the difference that the turn makes is added, so 0 degrees add exactly 0.
    less, sine = sampler.xp.cos(angle) - 1, sampler.xp.sin(angle)
    turned = []
    for column in zip(*sampler.colour, strict=True):
        first, second = _dot(_YIQ[1], column), _dot(_YIQ[2], column)
        turned.append((_times(less, first) - _times(sine, second), _times(sine, first) + _times(less, second)))
    sampler.colour = [
        [_plus(entry, back[1] * turn[0] + back[2] * turn[1]) for entry, turn in zip(row, turned, strict=True)]
        for row, back in zip(sampler.colour, _RGB_OF_YIQ, strict=True)
    ]


@_samples(ops.Invert, "colour", 0)
def _invert(op: ops.Invert, sampler: ParamSampler, u: Any) -> None:
    side, summand = 1 - 2 * sampler.on, 255 * sampler.on
    sampler.map_colour(lambda entry, column: _plus(_times(entry, side), summand if column == 3 else 0.0))


# Pixels: ops that have a pass of their own. Of several of a kind, the last that happens, if nothing else is said.


@_samples(ops.Shrink, "shrink", 3)
def _shrink(op: ops.Shrink, sampler: ParamSampler, u: Any) -> None:
    xp = sampler.xp
    if op.height is None:
        factor = sampler.uniform(op.factor, u[0], 0.0)
    else:
        low, high = (math.log(height / sampler.height) for height in op.height)
        factor = xp.exp(low + (high - low) * u[0])
        factor = xp.where(sampler.active & (factor < 1), factor, 0.0)
    # Cameras average over an area, so that is what most images get. The other filters take single places: where much is
    # lost, nobody could read what they leave.
    smaller = xp.where((u[1] < 0.7) | (factor < 0.4), 3.0, xp.floor((u[1] - 0.7) * 10))
    larger = xp.where(u[2] < 0.1, 0.0, xp.where(u[2] < 0.55, 1.0, 2.0))  # blocks are rare
    drawn = [factor, smaller, larger]
    sampler.shrink = [xp.where(factor > 0, new, old) for new, old in zip(drawn, sampler.shrink, strict=True)]


@_samples(ops.MotionBlur, "motion", 2)
def _motion_blur(op: ops.MotionBlur, sampler: ParamSampler, u: Any) -> None:
    length = sampler.uniform(op.length, u[0], 0.0)
    drawn = [length, math.pi * u[1]]
    sampler.motion = [sampler.xp.where(length > 0, new, old) for new, old in zip(drawn, sampler.motion, strict=True)]


@_samples(ops.Illumination, "light", 2)
def _illumination(op: ops.Illumination, sampler: ParamSampler, u: Any) -> None:
    xp = sampler.xp
    strength, angle = sampler.uniform(op.strength, u[0], 0.0), _TURN * u[1]
    across, down = strength * xp.cos(angle), strength * xp.sin(angle)
    most = xp.clip(abs(xp.cos(angle)) + abs(xp.sin(angle)), 1, None)  # so that a corner gets all of it, and no more
    sampler.light = [_plus(old, new / most) for old, new in zip(sampler.light, (across, down), strict=True)]


@_samples(ops.Blur, "blur", 1)
def _blur(op: ops.Blur, sampler: ParamSampler, u: Any) -> None:
    if op.choices:
        # A chain of `where` and no indexing: the same lines must run with torch in a compiled graph.
        sigma = op.choices[0] + 0 * u[0]
        for number, choice in enumerate(op.choices[1:], 1):
            sigma = sampler.xp.where(u[0] * len(op.choices) >= number, choice, sigma)
        sigma = sampler.xp.where(sampler.active, sigma, 0.0)
    else:
        sigma = sampler.uniform(op.sigma, u[0], 0.0)
    sampler.blur_variance = _plus(sampler.blur_variance, sigma**2)  # one Gaussian after another is a Gaussian


@_samples(ops.Noise, "noise", 2)
def _noise(op: ops.Noise, sampler: ParamSampler, u: Any) -> None:
    # Independent noises add up by their variances; one piece of the ring serves all.
    sampler.noise_variance = _plus(sampler.noise_variance, sampler.uniform(op.std, u[0], 0.0) ** 2)
    sampler.noise_place = sampler.xp.floor(u[1] * NOISE_RING)


@_samples(ops.Jpeg, "jpeg", 1)
def _jpeg(op: ops.Jpeg, sampler: ParamSampler, u: Any) -> None:
    quality = sampler.xp.round(sampler.uniform(op.quality, u[0], 0.0))
    sampler.jpeg = sampler.xp.where(quality > 0, quality, sampler.jpeg)  # of several, the last that happens


@_samples(ops.Cutout, "cutouts", lambda op: 5 * op.count)
def _cutout(op: ops.Cutout, sampler: ParamSampler, u: Any) -> None:
    height, width = sampler.height, sampler.width
    for first in range(0, 5 * op.count, 5):
        x, y, across, down, shade = (u[first + k] for k in range(5))
        # Both sides are shares of the height, each sampled by itself.
        half_width = height / 2 * sampler.uniform(op.size, across, 0.0)
        half_height = height / 2 * sampler.uniform(op.size, down, 0.0)
        places = ((x * width, half_width, width), (y * height, half_height, height))
        for sign in (-1, 1):
            for centre, half, limit in places:
                sampler.cutouts.append(sampler.xp.clip(sampler.xp.round(centre + sign * half), 0, limit))
        sampler.cutouts.append(sampler.uniform(op.shade, shade, 0.0))
