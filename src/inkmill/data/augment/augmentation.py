"""An augmentation: from a spec and the samples' indices to the parameters of a batch.

Everything here works on whole batches, and alike with NumPy and with torch: what a GPU samples is what the CPU samples.
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
from inkmill.data.augment import ops
from inkmill.data.augment.params import AugmentParams
from inkmill.data.augment.random_numbers import Bits, sample_states, stream_ids, stream_offsets, uniforms
from inkmill.data.augment.sampling import ParamSampler, layout_of, numbers_of, part_of
from inkmill.errors import ConfigError


@dataclass(frozen=True)
class _NumberedOp:
    """An op with the number that its random numbers hang on, and the groups around it, as (number, probability)."""

    op: ops.Op
    number: int
    groups: tuple[tuple[int, float], ...]

    @property
    def coins(self) -> tuple[tuple[int, float], ...]:
        """Numbers and probabilities of all that must happen for the op to happen: its own p, and that of each group."""
        return ((self.number, self.op.p), *self.groups)


class Augmentation:
    """A list of random ops whose parameters can be sampled for any batch.

    Args:
        op_list: ops in the order of application.

    Attributes:
        layout: which columns the parameters have.
        offsets: uint64 (S,), the `stream_offsets` of all random numbers that a sample uses.
        identity: stands for what may be sampled; equal for equal ops.
    """

    kind: Literal["numbers"] = "numbers"
    """What it is beside an `AlbumentationsPipeline`, which is code."""

    def __init__(self, op_list: list[ops.Op]) -> None:
        self._given = op_list
        self._ops = list(_flatten(op_list, (), iter(range(1_000_000))))
        self.identity = repr(self._ops)
        self.layout = layout_of([(entry.op, math.prod(p for _, p in entry.coins)) for entry in self._ops])
        # Cached now: torch.compile cannot trace a cached_property's first call on Python 3.11.
        _ = self.layout.columns, self.layout.passes
        self._ids: list[int] = []
        self._first: dict[int, int] = {}  # of an op or group: where its random numbers begin among all
        for entry in self._ops:
            for number, _ in entry.groups:
                self._add_streams(number, 1)
            self._add_streams(entry.number, 1 + numbers_of(entry.op))
        self.offsets = stream_offsets(self._ids)

    def _add_streams(self, number: int, count: int) -> None:
        if number not in self._first:
            self._first[number] = len(self._ids)
            self._ids += stream_ids(number, count)

    @classmethod
    def from_spec(cls, spec: AugmentationSpec) -> Augmentation:
        """Build the augmentation that a spec describes.

        Raises:
            ConfigError: an op, key, value or preset that does not exist; a pipeline, which `open_augmentation` reads.
        """
        if spec.albumentations:
            raise ConfigError("augmentation.albumentations is not made of numbers: use open_augmentation(spec)")
        return cls(ops.ops_of(spec))

    def for_windows(self) -> Augmentation:
        """Return the augmentation for parts of larger pictures (see `windows`), which always have a matrix.

        Raises:
            ConfigError: it bends the picture, which no matrix tells.
        """
        if self.layout.waves:
            raise ConfigError("curve and elastic bend text, and regions follow a matrix alone: leave them out")
        return self if self.layout.space else Augmentation([*self._given, ops.Crop(p=0)])

    @property
    def crop(self) -> tuple[ops.Crop | ops.RandomResizedCrop, NDArray[np.uint64], NDArray[np.float64]] | None:
        """The op that chooses the part of a larger picture, if any: the op, the offsets of its random numbers after
        those of its coins, and the coins' probabilities."""
        for entry in self._ops:
            if isinstance(entry.op, (ops.Crop, ops.RandomResizedCrop)):
                coins = [stream_ids(number, 1)[0] for number, _ in entry.coins]
                numbers = stream_ids(entry.number, 1 + numbers_of(entry.op))[1:]
                probabilities = np.array([probability for _, probability in entry.coins])
                return entry.op, stream_offsets([*coins, *numbers]), probabilities
        return None

    def __bool__(self) -> bool:
        return bool(self._ops)

    def sample(
        self,
        seed: int,
        epoch: int,
        index: NDArray[np.int64],
        height: int,
        width: int,
        window: NDArray[np.float64] | None = None,
    ) -> AugmentParams:
        """Sample the parameters of a batch.

        Args:
            seed: seed of the run.
            epoch: the epoch; another one gives other parameters.
            index: int64 (B,), positions of the samples in the source.
            height: rows of the resized images, in pixels.
            width: columns of the resized images.
            window: which parts of larger pictures the images are to be, (4, B) of `windows.draw_windows`.

        Returns:
            float32 (B, layout.size); each row depends on (seed, epoch, its index) and the size alone.
        """
        states = sample_states(seed, epoch, np.asarray(index, np.int64))
        values = np.empty((len(states), self.layout.size), np.float32)
        for number, column in enumerate(self.columns(np, states, self.offsets, height, width, window)):
            values[:, number] = column
        return AugmentParams(values, self.layout, height, width)

    def columns(self, xp: Any, states: Bits, offsets: Bits, height: int, width: int, window: Any = None) -> list[Any]:
        """Return the columns of the parameters, not yet stacked.

        Args:
            xp: numpy or torch, whose functions compute.
            states: (B,) of `keyed_states`.
            offsets: the attribute `offsets`, as the same kind of numbers as `states`.
            height, width: size of the resized images in pixels.
            window: see `sample`, as (4, B) of the same kind of numbers.

        Returns:
            layout.size columns: float64 (B,), or a plain float where it is the same for all.
        """
        # 1. All random numbers at once: one hash for each sample and stream.
        u = uniforms(states, offsets)
        # 2. Op after op: who gets it, by its own coin and those of the groups around it, and what it adds.
        sampler = ParamSampler(xp, height, width, window)
        for entry in self._ops:
            active = u[self._first[entry.number]] < entry.op.p
            for number, probability in entry.groups:
                active = active & (u[self._first[number]] < probability)
            first = self._first[entry.number] + 1
            sampler.apply(entry.op, active, u[first : first + numbers_of(entry.op)])
        return sampler.columns(self.layout)

    def rows_with(self, part: str, states: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which samples get an op of a part of the parameters: bool (B,), from their probabilities alone."""
        found = np.zeros(len(states), np.bool_)
        for offsets, probabilities in self._coins.get(part, ()):
            found |= (uniforms(states, offsets) < probabilities).all(axis=0)
        return found

    @cached_property
    def _coins(self) -> dict[str, list[tuple[NDArray[np.uint64], NDArray[np.float64]]]]:
        """By part, for each of its ops: the stream offsets of its coins, and their probabilities (coins, 1)."""
        coins: dict[str, list[tuple[NDArray[np.uint64], NDArray[np.float64]]]] = {}
        for entry in self._ops:
            ids = [stream_ids(number, 1)[0] for number, _ in entry.coins]
            probabilities = np.array([[probability] for _, probability in entry.coins])
            coins.setdefault(part_of(entry.op), []).append((stream_offsets(ids), probabilities))
        return coins


def _flatten(
    op_list: list[ops.Op], groups: tuple[tuple[int, float], ...], numbers: Iterator[int]
) -> Iterator[_NumberedOp]:
    for op in op_list:
        number = next(numbers)
        if isinstance(op, ops.Group):
            yield from _flatten(ops.parse_ops(op.ops), (*groups, (number, op.p)), numbers)
        else:
            yield _NumberedOp(op, number, groups)
