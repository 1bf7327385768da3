"""Counter-based random numbers: a function of where they are used, not of what was sampled before.

A stateful generator makes an augmented image depend on the worker that made it and on everything the worker did
before. Here each number is a hash of (seed, epoch, index of the sample, number of the op, number within the op), so
the same sample gets the same augmentation in any batch, worker, loader or rank, and any image can be made again from
its index. The hash is splitmix64's finaliser (Steele, Lea, Flood 2014), applied once for each level.

The same lines run with NumPy on uint64 arrays and with torch on int64 tensors, whose bits are the same: torch has no
arithmetic on uint64, but its int64 wraps around too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = Any
"""A uint64 array of NumPy, or an int64 tensor of torch."""

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_NUMBERS_PER_OP = 64

NOISE_RING = 2**20
"""Length of the noise ring that all engines share; a power of two, so that GPUs wrap around without a division."""
NOISE_UNIT = 32.0
"""The ring's values are standard normal numbers times this, rounded."""


def splitmix64(x: Bits) -> Bits:
    """Return splitmix64's finaliser of each number: a bijection without visible structure."""
    first, second = (_for(x, factor) for factor in _FACTORS)
    x = x ^ _shifted(x, 30)
    x *= first
    x ^= _shifted(x, 27)
    x *= second
    x ^= _shifted(x, 31)
    return x


def _for(x: Bits, constant: int) -> int:
    """Return a 64-bit constant as the kind of number that `x` holds takes it."""
    return constant if isinstance(x, np.ndarray) or constant < 2**63 else constant - 2**64


def _shifted(x: Bits, places: int) -> Bits:
    """Return x shifted to the right, filled with zeros; int64 would fill with its sign bit."""
    return x >> places if isinstance(x, np.ndarray) else (x >> places) & ((1 << (64 - places)) - 1)


def epoch_key(seed: int, epoch: int) -> NDArray[np.uint64]:
    """Return what the states of all samples of one epoch have in common, uint64 (1,)."""
    mask = 2**64 - 1
    key = splitmix64(np.array([seed & mask], np.uint64))
    key = splitmix64(key + np.array([epoch & mask], np.uint64) * _GOLDEN)
    return np.asarray(key)


def keyed_states(key: Bits, index: Bits) -> Bits:
    """Return one state for each sample: (B,) of `epoch_key` and the samples' positions, as the same kind of number."""
    return splitmix64((index + 1) * _for(index, _GOLDEN) + key)


def sample_states(seed: int, epoch: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return one uint64 (B,) state for each sample."""
    return np.asarray(keyed_states(epoch_key(seed, epoch), index.astype(np.uint64)))


def stream_ids(op_number: int, count: int) -> list[int]:
    """Return the ids of the first `count` streams of random numbers of one op; no other op has the same.

    Raises:
        ValueError: more streams than an op has.
    """
    if count > _NUMBERS_PER_OP:
        raise ValueError(f"an op may use {_NUMBERS_PER_OP} random numbers a sample, not {count}")
    return [op_number * _NUMBERS_PER_OP + 1 + number for number in range(count)]


def stream_offsets(ids: list[int]) -> NDArray[np.uint64]:
    """Return what is added to a sample's state for each of some streams, uint64 (S,)."""
    return np.array(ids, np.uint64) * np.uint64(_GOLDEN)


def uniforms(states: Bits, offsets: Bits) -> Any:
    """Return float64 (S, B) numbers in [0, 1) for (B,) states of samples and (S,) `stream_offsets`."""
    bits = _shifted(splitmix64(states[None, :] + offsets[:, None]), 11)
    # Below 2**53, so that float64 holds them exactly; NumPy converts int64 faster than uint64.
    numbers = bits.view(np.int64).astype(np.float64) if isinstance(bits, np.ndarray) else bits.double()
    numbers *= 2.0**-53
    return numbers


@lru_cache(maxsize=1)
def noise_ring() -> NDArray[np.int8]:
    """Return a ring buffer of Gaussian noise, int8 (NOISE_RING,), in units of 1 / NOISE_UNIT.

    An image's noise is a piece of this ring from a random place, times its standard deviation. So all engines add the
    same numbers, and none pays for making them: 2**20 places are too many for a model to learn.
    """
    u = uniforms(sample_states(0, 0, np.arange(NOISE_RING // 2)), stream_offsets(stream_ids(0, 2)))
    # Seed and epoch are 0 for all runs: the ring is a constant that is cheaper to compute than to ship.
    radius = np.sqrt(-2 * np.log1p(-u[0]))  # Box and Muller 1958
    pairs = np.stack([radius * np.cos(2 * np.pi * u[1]), radius * np.sin(2 * np.pi * u[1])])
    ring = np.clip(np.rint(pairs.ravel() * NOISE_UNIT), -127, 127).astype(np.int8)
    ring.flags.writeable = False
    return ring
