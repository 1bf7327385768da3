"""How many pictures readers read in a second, side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from inkmill.runtime.reader import BaseReader

BATCHES = (1, 32)
MOST_PIXELS = 1 << 25
"""Of a batch: of whole pages not even a few dozen fit in memory, and none but the first batch is measured."""
ROUNDS = 5
WINDOW_S = 0.1
"""A turn takes at least this long."""

Speed = dict[str, float]
"""Images a second: median, least and most of the rounds."""


def images_per_second(
    readers: Sequence[BaseReader], images: NDArray[np.uint8], rounds: int = ROUNDS
) -> list[dict[str, Speed]]:
    """Return the speeds of each reader by batch, as `batch_1` and `batch_32`; of pages, the first alone.

    The pictures are in memory and resized; choosing the classes is in it, decoding to text is not.

    Args:
        readers: one or more.
        images: uint8 (N, H, W, C), resized; repeated to fill a batch.
        rounds: how often each has its turn.
    """
    found: list[dict[str, Speed]] = [{} for _ in readers]
    for batch in BATCHES:
        if batch > 1 and batch * images[0].size > MOST_PIXELS * images.shape[3]:
            continue
        some = images[np.arange(batch) % len(images)]
        speeds = in_turn([partial(reader.outputs, some) for reader in readers], batch, rounds)
        for one, speed in zip(found, speeds, strict=True):
            one[f"batch_{batch}"] = speed
    return found


def medians(speeds: Mapping[str, Speed]) -> dict[str, float]:
    """Return the median alone of speeds by batch."""
    return {batch: speed["median"] for batch, speed in speeds.items()}


def in_turn(works: Sequence[Callable[[], object]], images: int, rounds: int = ROUNDS) -> list[Speed]:
    """Return the speed of each work, which does so many images at a time.

    They take turns, so that what else the machine does falls on all of them alike.
    """
    for work in works:
        work()  # the first run reserves memory and chooses kernels
    turns = [[_images_per_second(work, images) for work in works] for _ in range(rounds)]
    return [
        {"median": statistics.median(speeds), "least": min(speeds), "most": max(speeds)}
        for speeds in zip(*turns, strict=True)
    ]


def _images_per_second(work: Callable[[], object], images: int) -> float:
    done = 0
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < WINDOW_S or not done:
        work()
        done += images
    return done / passed
