"""Drawing an augmentation: from a spec and the samples' indices to a table of numbers.

Everything here works on whole batches, with the batch as the last axis: composing 3x3 matrices is then a handful of
long vector operations, six times faster than NumPy's matmul on a stack of small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import spec as ops
from inkmill.data.augment.random_numbers import NOISE_RING, row_states, uniforms
from inkmill.data.augment.table import LUMA, Layout, Table
from inkmill.errors import ConfigError

Numbers = NDArray[np.float64]
ELASTIC_WAVES = 3
_TURN = 2 * math.pi
_HORIZON = 0.25  # least depth within the picture: nothing is enlarged more than 4 times by perspective

# From RGB to luma and two colour differences (NTSC), where hue is an angle.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_RGB_OF_YIQ = np.linalg.inv(_YIQ)


@dataclass(frozen=True)
class _NumberedOp:
    """An op with the number that its random numbers hang on, and the groups around it."""

    op: ops.Op
    number: int
    gates: tuple[tuple[int, float], ...]


class Augmentation:
    """A list of random changes, ready to be drawn for any batch.

    Args:
        changes: ops in the order of application.
    """

    kind: Literal["numbers"] = "numbers"
    """What it is beside an `AlbumentationsPipeline`, which is code."""

    def __init__(self, changes: list[ops.Op]) -> None:
        self._ops = list(_flatten(changes, (), iter(range(1_000_000))))
        self.layout = _layout(self._ops)

    @classmethod
    def from_spec(cls, spec: AugmentationSpec) -> Augmentation:
        """Build the augmentation that a spec describes.

        Raises:
            ConfigError: an op, key, value or preset that does not exist; a pipeline, which `open_augmentation` reads.
        """
        if spec.albumentations:
            raise ConfigError("augmentation.albumentations is not made of numbers: use open_augmentation(spec)")
        return cls(ops.ops_of(spec))

    def __bool__(self) -> bool:
        return bool(self._ops)

    def draw(self, seed: int, epoch: int, index: NDArray[np.int64], height: int, width: int) -> Table:
        """Draw the changes to a batch.

        Args:
            seed: seed of the run.
            epoch: the epoch; another one gives other changes.
            index: int64 (B,), positions of the samples in the source.
            height: rows of the fitted images, in pixels.
            width: columns of the fitted images.

        Returns:
            The table; each row depends on (seed, epoch, its index) and the size alone.
        """
        states = row_states(seed, epoch, np.asarray(index, np.int64))
        drawing = _Drawing(len(states), height, width)
        for entry in self._ops:
            drawing.enter(states, entry)
            _DRAW[type(entry.op)](entry.op, drawing)
        return Table(drawing.values(self.layout), self.layout, height, width)


def _flatten(
    changes: list[ops.Op], gates: tuple[tuple[int, float], ...], numbers: Iterator[int]
) -> Iterator[_NumberedOp]:
    for op in changes:
        number = next(numbers)
        if isinstance(op, ops.Group):
            yield from _flatten(ops.parse_ops(op.ops), (*gates, (number, op.p)), numbers)
        else:
            yield _NumberedOp(op, number, gates)


def _layout(entries: list[_NumberedOp]) -> Layout:
    changes = [entry.op for entry in entries]
    kinds = [type(op) for op in changes]
    sigmas = [op.largest for op in changes if isinstance(op, ops.Blur)]
    return Layout(
        space=any(kind in _SPACE for kind in kinds),
        waves=kinds.count(ops.Curve) + ELASTIC_WAVES * kinds.count(ops.Elastic),
        blur_radius=math.ceil(3 * math.hypot(*sigmas)),
        colour=any(kind in _COLOUR for kind in kinds),
        noise=ops.Noise in kinds,
        jpeg=ops.Jpeg in kinds,
        cutouts=sum(op.count for op in changes if isinstance(op, ops.Cutout)),
        blur_share=_share(entries, ops.Blur),
        jpeg_share=_share(entries, ops.Jpeg),
    )


def _share(entries: list[_NumberedOp], kind: type[ops.Op]) -> float:
    """Return a bound of the probability that an image gets a kind of change."""
    chances = [math.prod((entry.op.p, *(p for _, p in entry.gates))) for entry in entries if type(entry.op) is kind]
    return min(1.0, sum(chances))


class _Drawing:
    """A table in the making; matrices are (rows, columns, B)."""

    def __init__(self, count: int, height: int, width: int) -> None:
        self.count, self.height, self.width = count, height, width
        self.space = self.identity(3, 3)
        self.colour = self.identity(3, 4)
        self.blur_variance = np.zeros(count)
        self.noise_variance = np.zeros(count)
        self.noise_place = np.zeros(count)
        self.jpeg = np.zeros(count)
        self.waves: list[Numbers] = []
        self.cutouts: list[Numbers] = []

    def identity(self, rows: int, columns: int) -> Numbers:
        matrix = np.zeros((rows, columns, self.count))
        matrix[range(3), range(3)] = 1
        return matrix

    def enter(self, states: NDArray[np.uint64], entry: _NumberedOp) -> None:
        """Point at an op: decide which images get it, and lay its random numbers out."""
        self._states, self._number = states, entry.number
        self.active = uniforms(states, entry.number, 1)[0] < entry.op.p
        for number, probability in entry.gates:
            self.active &= uniforms(states, number, 1)[0] < probability

    def uniforms(self, count: int) -> Numbers:
        """Return (count, B) numbers in [0, 1); the first draw of an op is its coin."""
        return uniforms(self._states, self._number, count + 1)[1:]

    def chosen(self, limits: tuple[float, float], uniform: Numbers, otherwise: float) -> Numbers:
        """Return numbers from a range for the images that get the op, and `otherwise` for the rest."""
        low, high = limits
        return np.where(self.active, low + (high - low) * uniform, otherwise)

    def move(self, backwards: Numbers) -> None:
        """Add a change in space, given as the matrix from output to input, centred."""
        self.space = np.einsum("ijb,jkb->ikb", self.space, backwards)

    def values(self, layout: Layout) -> NDArray[np.float32]:
        """Return the table's numbers, (B, layout.size)."""
        values = np.empty((self.count, layout.size), np.float32)
        parts: dict[str, Callable[[], Numbers]] = {
            "space": self._centred_space,
            "waves": lambda: np.concatenate(self.waves),
            "blur": lambda: np.sqrt(self.blur_variance)[None],
            "colour": lambda: self.colour.reshape(12, -1),
            "noise": lambda: np.stack([np.sqrt(self.noise_variance), self.noise_place]),
            "jpeg": lambda: self.jpeg[None],
            "cutouts": lambda: np.concatenate(self.cutouts),
        }
        for name, columns in layout.columns.items():
            values[:, columns] = parts[name]().T
        return values

    def _centred_space(self) -> Numbers:
        """Move the matrices' origin from the centre of the image to its first pixel."""
        moved = (self.space != np.eye(3)[:, :, None]).any(axis=(0, 1))
        self._keep_horizon_outside()
        x, y = (self.width - 1) / 2, (self.height - 1) / 2
        to_centre = np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1]])
        back = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])
        matrix = np.einsum("ij,jkb,kl->ilb", back, self.space, to_centre, optimize=True)
        matrix[:, :, ~moved] = np.eye(3)[:, :, None]  # exactly, so that engines can skip the row
        return cast(Numbers, matrix.reshape(9, -1))

    def _keep_horizon_outside(self) -> None:
        """Weaken perspectives that, composed with other changes, would show the horizon or what is behind it."""
        tilt = self.space[2]
        nearest = (np.abs(tilt[0]) * self.width + np.abs(tilt[1]) * self.height) / 2
        with np.errstate(divide="ignore"):
            tilt[:2] *= np.clip((tilt[2] - _HORIZON) / nearest, 0, 1)
        tilt[2] = np.maximum(tilt[2], _HORIZON)


# Space: each matrix maps the output to the input, so it is the inverse of the change one sees.


def _rotate(op: ops.Rotate, drawing: _Drawing) -> None:
    angle = np.deg2rad(drawing.chosen(op.degrees, drawing.uniforms(1)[0], 0))
    matrix = drawing.identity(3, 3)
    matrix[0, 0] = matrix[1, 1] = np.cos(angle)
    matrix[1, 0] = np.sin(angle)
    matrix[0, 1] = -matrix[1, 0]
    drawing.move(matrix)


def _shear(op: ops.Shear, drawing: _Drawing) -> None:
    u = drawing.uniforms(2)
    matrix = drawing.identity(3, 3)
    matrix[0, 1] = np.tan(np.deg2rad(drawing.chosen(op.degrees_x, u[0], 0)))
    matrix[1, 0] = np.tan(np.deg2rad(drawing.chosen(op.degrees_y, u[1], 0)))
    drawing.move(matrix)


def _scale(op: ops.Scale, drawing: _Drawing) -> None:
    u = drawing.uniforms(2)
    matrix = drawing.identity(3, 3)
    matrix[0, 0] = 1 / drawing.chosen(op.factor, u[0], 1)
    matrix[1, 1] = matrix[0, 0] if op.keep_ratio else 1 / drawing.chosen(op.factor, u[1], 1)
    drawing.move(matrix)


def _shift(op: ops.Shift, drawing: _Drawing) -> None:
    u = drawing.uniforms(2)
    matrix = drawing.identity(3, 3)
    matrix[0, 2] = -drawing.width * drawing.chosen(op.x, u[0], 0)
    matrix[1, 2] = -drawing.height * drawing.chosen(op.y, u[1], 0)
    drawing.move(matrix)


def _perspective(op: ops.Perspective, drawing: _Drawing) -> None:
    u = drawing.uniforms(2)
    matrix = drawing.identity(3, 3)
    matrix[2, 0] = drawing.chosen(op.x, u[0], 0) / drawing.width
    matrix[2, 1] = drawing.chosen(op.y, u[1], 0) / drawing.height
    drawing.move(matrix)


def _flip(op: ops.Flip, drawing: _Drawing) -> None:
    axis = 0 if op.axis == "horizontal" else 1
    matrix = drawing.identity(3, 3)
    matrix[axis, axis] = np.where(drawing.active, -1, 1)
    drawing.move(matrix)


def _curve(op: ops.Curve, drawing: _Drawing) -> None:
    u = drawing.uniforms(3)
    wave = np.zeros((5, drawing.count))
    wave[1] = drawing.height * drawing.chosen(op.amplitude, u[0], 0)
    wave[2] = _TURN / drawing.width * drawing.chosen(op.cycles, u[1], 0)
    wave[4] = _TURN * u[2]
    drawing.waves.append(wave)


def _elastic(op: ops.Elastic, drawing: _Drawing) -> None:
    u = drawing.uniforms(1 + 4 * ELASTIC_WAVES)
    way = drawing.height / ELASTIC_WAVES * drawing.chosen(op.amplitude, u[0], 0)
    for direction, heading, length, phase in u[1:].reshape(ELASTIC_WAVES, 4, -1):
        frequency = _TURN / (drawing.height * (op.wavelength[0] + (op.wavelength[1] - op.wavelength[0]) * length))
        moves = way * np.cos(_TURN * direction), way * np.sin(_TURN * direction)
        runs = frequency * np.cos(_TURN * heading), frequency * np.sin(_TURN * heading)
        drawing.waves.append(np.stack([*moves, *runs, _TURN * phase]))


# Colour: each change is applied to the matrix so far, in place.


def _brightness(op: ops.Brightness, drawing: _Drawing) -> None:
    drawing.colour *= drawing.chosen(op.factor, drawing.uniforms(1)[0], 1)


def _contrast(op: ops.Contrast, drawing: _Drawing) -> None:
    factor = drawing.chosen(op.factor, drawing.uniforms(1)[0], 1)
    drawing.colour *= factor
    drawing.colour[:, 3] += 127.5 * (1 - factor)


def _saturate(drawing: _Drawing, factor: Numbers) -> None:
    luma = np.einsum("c,cdb->db", LUMA, drawing.colour)
    drawing.colour += (1 - factor) * (luma - drawing.colour)  # written so that a factor of 1 is exactly nothing


def _saturation(op: ops.Saturation, drawing: _Drawing) -> None:
    _saturate(drawing, drawing.chosen(op.factor, drawing.uniforms(1)[0], 1))


def _gray(op: ops.Gray, drawing: _Drawing) -> None:
    _saturate(drawing, np.where(drawing.active, 0.0, 1.0))


def _hue(op: ops.Hue, drawing: _Drawing) -> None:
    angle = np.deg2rad(drawing.chosen(op.degrees, drawing.uniforms(1)[0], 0))
    turn = np.zeros((3, 3, drawing.count))
    turn[1, 1] = turn[2, 2] = np.cos(angle) - 1
    turn[1, 2] = -np.sin(angle)
    turn[2, 1] = -turn[1, 2]
    drawing.colour += np.einsum("ij,jkb,kl,lmb->imb", _RGB_OF_YIQ, turn, _YIQ, drawing.colour, optimize=True)


def _invert(op: ops.Invert, drawing: _Drawing) -> None:
    drawing.colour *= np.where(drawing.active, -1, 1)
    drawing.colour[:, 3] += np.where(drawing.active, 255, 0)


def _blur(op: ops.Blur, drawing: _Drawing) -> None:
    u = drawing.uniforms(1)[0]
    if op.choices:
        sigma = np.where(drawing.active, np.array(op.choices)[(u * len(op.choices)).astype(np.int64)], 0)
    else:
        sigma = drawing.chosen(op.sigma, u, 0)
    drawing.blur_variance += sigma**2  # one Gaussian after another is a Gaussian


def _noise(op: ops.Noise, drawing: _Drawing) -> None:
    u = drawing.uniforms(2)
    drawing.noise_variance += drawing.chosen(op.std, u[0], 0) ** 2
    drawing.noise_place = np.floor(u[1] * NOISE_RING)


def _jpeg(op: ops.Jpeg, drawing: _Drawing) -> None:
    quality = np.rint(drawing.chosen(op.quality, drawing.uniforms(1)[0], 0))
    drawing.jpeg = np.where(quality > 0, quality, drawing.jpeg)


def _cutout(op: ops.Cutout, drawing: _Drawing) -> None:
    height, width = drawing.height, drawing.width
    for x, y, across, down, shade in drawing.uniforms(5 * op.count).reshape(op.count, 5, -1):
        half_width = height / 2 * drawing.chosen(op.size, across, 0)
        half_height = height / 2 * drawing.chosen(op.size, down, 0)
        sides = np.stack(
            [x * width - half_width, y * height - half_height, x * width + half_width, y * height + half_height]
        )
        limit = np.array([width, height, width, height])[:, None]
        drawing.cutouts.append(
            np.concatenate([np.clip(np.rint(sides), 0, limit), drawing.chosen(op.shade, shade, 0)[None]])
        )


_SPACE: dict[type[ops.Op], Callable[..., None]] = {
    ops.Rotate: _rotate,
    ops.Shear: _shear,
    ops.Scale: _scale,
    ops.Shift: _shift,
    ops.Perspective: _perspective,
    ops.Flip: _flip,
}
_COLOUR: dict[type[ops.Op], Callable[..., None]] = {
    ops.Brightness: _brightness,
    ops.Contrast: _contrast,
    ops.Saturation: _saturation,
    ops.Hue: _hue,
    ops.Invert: _invert,
    ops.Gray: _gray,
}
_DRAW: dict[type[ops.Op], Callable[..., None]] = {
    **_SPACE,
    **_COLOUR,
    ops.Curve: _curve,
    ops.Elastic: _elastic,
    ops.Blur: _blur,
    ops.Noise: _noise,
    ops.Jpeg: _jpeg,
    ops.Cutout: _cutout,
}
