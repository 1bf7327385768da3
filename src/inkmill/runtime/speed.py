"""How many pictures readers read in a second, side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inkmill.runtime.reader import BaseReader

BATCHES = (1, 32)
ROUNDS = 5
WINDOW_S = 0.1
"""A round reads with each reader in turn for at least this long."""

Speed = dict[str, float]
"""Images a second: median, least and most of the rounds."""


def images_per_second(
    readers: Sequence[BaseReader], images: NDArray[np.uint8], rounds: int = ROUNDS
) -> list[dict[str, Speed]]:
    """Return the speeds of each reader by batch, as `batch_1` and `batch_32`.

    The readers take turns, so that what else the machine does falls on all of them alike. The pictures are in memory
    and fitted; choosing the classes is in it, decoding to text is not.

    Args:
        readers: one or more.
        images: uint8 (N, H, W, C), fitted; repeated to fill a batch.
        rounds: how often each has its turn.
    """
    found: list[dict[str, Speed]] = [{} for _ in readers]
    for batch in BATCHES:
        some = images[np.arange(batch) % len(images)]
        for reader in readers:
            reader.classify(some)  # the first run reserves memory
        turns = [[_read_for(reader, some, WINDOW_S) for reader in readers] for _ in range(rounds)]
        for one, speeds in zip(found, zip(*turns, strict=True), strict=True):
            one[f"batch_{batch}"] = {
                "median": statistics.median(speeds),
                "least": min(speeds),
                "most": max(speeds),
            }
    return found


def _read_for(reader: BaseReader, images: NDArray[np.uint8], seconds: float) -> float:
    read = 0
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or not read:
        reader.classify(images)
        read += len(images)
    return read / passed
