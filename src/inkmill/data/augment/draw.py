"""Drawing an augmentation: from a spec and the samples' indices to a table of numbers.

Everything here works on whole batches, and alike with NumPy and with torch: what is drawn on a GPU is what is drawn on
the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import spec as ops
from inkmill.data.augment.drawing import ELASTIC_WAVES, Drawing, draws_of, is_colour, is_spatial
from inkmill.data.augment.random_numbers import Bits, draw_numbers, draw_steps, row_states, uniforms
from inkmill.data.augment.table import AugmentParams, ParamLayout
from inkmill.errors import ConfigError


@dataclass(frozen=True)
class _NumberedOp:
    """An op with the number that its random numbers hang on, and the groups around it."""

    op: ops.Op
    number: int
    gates: tuple[tuple[int, float], ...]

    @property
    def coins(self) -> tuple[tuple[int, float], ...]:
        """Numbers and probabilities of what must come up for the op to happen."""
        return ((self.number, self.op.p), *self.gates)


class Augmentation:
    """A list of random changes, ready to be drawn for any batch.

    Args:
        changes: ops in the order of application.

    Attributes:
        identity: stands for what may be drawn; equal for equal ops.
    """

    kind: Literal["numbers"] = "numbers"
    """What it is beside an `AlbumentationsPipeline`, which is code."""

    def __init__(self, changes: list[ops.Op]) -> None:
        self._ops = list(_flatten(changes, (), iter(range(1_000_000))))
        self.identity = repr(self._ops)
        self.layout = _layout(self._ops)
        _ = self.layout.columns  # cached now: torch.compile cannot trace a cached_property's first call on Python 3.11
        self._draws: list[int] = []
        self._first: dict[int, int] = {}  # of an op or group: where its draws begin among all
        for entry in self._ops:
            for number, _ in entry.gates:
                self._add_draws(number, 1)
            self._add_draws(entry.number, 1 + draws_of(entry.op))
        self.steps = draw_steps(self._draws)

    def _add_draws(self, number: int, count: int) -> None:
        if number not in self._first:
            self._first[number] = len(self._draws)
            self._draws += draw_numbers(number, count)

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

    def draw(self, seed: int, epoch: int, index: NDArray[np.int64], height: int, width: int) -> AugmentParams:
        """Draw the changes to a batch.

        Args:
            seed: seed of the run.
            epoch: the epoch; another one gives other changes.
            index: int64 (B,), positions of the samples in the source.
            height: rows of the resized images, in pixels.
            width: columns of the resized images.

        Returns:
            The table; each row depends on (seed, epoch, its index) and the size alone.
        """
        states = row_states(seed, epoch, np.asarray(index, np.int64))
        values = np.empty((len(states), self.layout.size), np.float32)
        for number, column in enumerate(self.columns(np, states, self.steps, height, width)):
            values[:, number] = column
        return AugmentParams(values, self.layout, height, width)

    def columns(self, xp: Any, states: Bits, steps: Bits, height: int, width: int) -> list[Any]:
        """Return the numbers of a table, not yet put together.

        Args:
            xp: numpy or torch, whose functions draw.
            states: (B,) of `keyed_states`.
            steps: the attribute `steps`, as the same kind of numbers as `states`.
            height, width: size of the resized images in pixels.

        Returns:
            layout.size columns: float64 (B,), or a plain float where it is the same for all.
        """
        u = uniforms(states, steps)
        drawing = Drawing(xp, height, width)
        for entry in self._ops:
            active = u[self._first[entry.number]] < entry.op.p
            for number, probability in entry.gates:
                active = active & (u[self._first[number]] < probability)
            first = self._first[entry.number] + 1
            drawing.apply(entry.op, active, u[first : first + draws_of(entry.op)])
        return drawing.columns(self.layout)

    def rows_with(self, kind: type[ops.Op], states: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of the rows get a kind of change: bool (B,), by tossing those ops' coins alone."""
        found = np.zeros(len(states), np.bool_)
        for steps, probabilities in self._coins.get(kind, ()):
            found |= (uniforms(states, steps) < probabilities).all(axis=0)
        return found

    @cached_property
    def _coins(self) -> dict[type[ops.Op], list[tuple[NDArray[np.uint64], NDArray[np.float64]]]]:
        """By kind of op, for each such op: what `uniforms` needs for its coins, and their probabilities (coins, 1)."""
        coins: dict[type[ops.Op], list[tuple[NDArray[np.uint64], NDArray[np.float64]]]] = {}
        for entry in self._ops:
            numbers = [draw_numbers(number, 1)[0] for number, _ in entry.coins]
            probabilities = np.array([[probability] for _, probability in entry.coins])
            coins.setdefault(type(entry.op), []).append((draw_steps(numbers), probabilities))
        return coins


def _flatten(
    changes: list[ops.Op], gates: tuple[tuple[int, float], ...], numbers: Iterator[int]
) -> Iterator[_NumberedOp]:
    for op in changes:
        number = next(numbers)
        if isinstance(op, ops.Group):
            yield from _flatten(ops.parse_ops(op.ops), (*gates, (number, op.p)), numbers)
        else:
            yield _NumberedOp(op, number, gates)


def _layout(entries: list[_NumberedOp]) -> ParamLayout:
    changes = [entry.op for entry in entries]
    kinds = [type(op) for op in changes]
    sigmas = [op.largest for op in changes if isinstance(op, ops.Blur)]
    return ParamLayout(
        space=any(map(is_spatial, changes)),
        waves=kinds.count(ops.Curve) + ELASTIC_WAVES * kinds.count(ops.Elastic),
        blur_radius=math.ceil(3 * math.hypot(*sigmas)),
        colour=any(map(is_colour, changes)),
        noise=ops.Noise in kinds,
        jpeg=ops.Jpeg in kinds,
        cutouts=sum(op.count for op in changes if isinstance(op, ops.Cutout)),
        blur_share=_share(entries, ops.Blur),
        jpeg_share=_share(entries, ops.Jpeg),
    )


def _share(entries: list[_NumberedOp], kind: type[ops.Op]) -> float:
    """Return a bound of the probability that an image gets a kind of change."""
    chances = [math.prod(p for _, p in entry.coins) for entry in entries if type(entry.op) is kind]
    return min(1.0, sum(chances))
