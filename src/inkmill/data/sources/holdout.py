"""Which samples are held out for validation: a question of each sample's key, not of the order of the files."""

from __future__ import annotations

import hashlib
import re

import numpy as np
from numpy.typing import NDArray

from inkmill.data.sources.base import Source
from inkmill.errors import ConfigError, DataError

_REPEAT = re.compile(r"#\d+$")


def holdout(source: Source, fraction: float, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a source into a training and a validation part.

    Each key is hashed (blake2b, keyed by the seed) and the smallest hashes are held out: the same samples for the same
    keys, however they are ordered, and new samples move few old ones. Samples with one image stay on one side.

    Args:
        source: the whole.
        fraction: share to hold out, between 0 and 1; at least one sample is.
        seed: another seed holds out other samples.

    Returns:
        Indices of the training part and of the validation part, int64, ascending, together all of them.

    Raises:
        ConfigError: a fraction outside of 0..1.
        DataError: too few different samples for two parts.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"the share to hold out must lie between 0 and 1, and is {fraction}")
    salt = seed.to_bytes(16, "little", signed=True)
    digests = b"".join(_digest(source.key(index), salt) for index in range(len(source)))
    hashes = np.frombuffer(digests, "<u8")
    count = max(round(fraction * len(hashes)), 1)
    held = hashes <= np.partition(hashes, count - 1)[count - 1] if len(hashes) else np.zeros(0, bool)
    if held.all():
        raise DataError(f"{source.name} has {len(source)} samples, too few to hold some out: give a validation set")
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)


def _digest(key: str, salt: bytes) -> bytes:
    return hashlib.blake2b(_REPEAT.sub("", key).encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
