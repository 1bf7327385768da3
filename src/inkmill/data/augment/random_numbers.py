"""Random numbers that are a function of where they are used, not of what was drawn before.

A stateful generator makes an augmented image depend on the worker that made it and on everything the worker did
before. Here each number is a hash of (seed, epoch, index of the sample, number of the op, number of the draw), so the
same sample gets the same change in any batch, worker, loader or rank, and any picture can be made again from its index.
The hash is splitmix64's finaliser (Steele, Lea, Flood 2014), applied once for each level.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_DRAWS_PER_OP = 64

NOISE_RING = 2**20
"""Length of the ring of noise that all engines share."""
NOISE_UNIT = 32.0
"""The ring's values are standard normal numbers times this, rounded."""


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finaliser of each number: a bijection without visible structure."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_states(seed: int, epoch: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return one uint64 (B,) state for each sample."""
    mask = 2**64 - 1
    key = mix(np.array([seed & mask], np.uint64))
    key = mix(key + np.array([epoch & mask], np.uint64) * _GOLDEN)
    return mix(key + (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def uniforms(states: NDArray[np.uint64], op_number: int, count: int) -> NDArray[np.float64]:
    """Return float64 (count, B) numbers in [0, 1) for the first `count` draws of one op."""
    if count > _DRAWS_PER_OP:
        raise ValueError(f"an op may draw {_DRAWS_PER_OP} numbers, not {count}")
    draws = np.arange(count, dtype=np.uint64) + np.uint64(op_number * _DRAWS_PER_OP + 1)
    bits = mix(states[None, :] + draws[:, None] * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=1)
def noise_ring() -> NDArray[np.int8]:
    """Return the ring of Gaussian noise, int8 (NOISE_RING,), in units of 1 / NOISE_UNIT.

    An image's noise is a stretch of this ring from a random place, times its standard deviation. All engines so add
    the same numbers, and none pays for making them: 2**20 places are more than enough to never learn one by heart.
    """
    u = uniforms(row_states(0, 0, np.arange(NOISE_RING // 2)), 0, 2)
    radius = np.sqrt(-2 * np.log1p(-u[0]))  # Box and Muller 1958
    pairs = np.stack([radius * np.cos(2 * np.pi * u[1]), radius * np.sin(2 * np.pi * u[1])])
    ring = np.clip(np.rint(pairs.ravel() * NOISE_UNIT), -127, 127).astype(np.int8)
    ring.flags.writeable = False
    return ring
