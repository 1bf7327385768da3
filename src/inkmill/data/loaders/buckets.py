"""Which bucket each sample of a source falls into, for pictures of free width."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.decode import image_size
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources.base import Source
from inkmill.errors import DataError

_PART = 512  # samples a task


def measure_buckets(source: Source, resize: Resize) -> NDArray[np.int32]:
    """Return the resized width of every sample, from the headers of its images.

    Returns:
        int32 (N,); a sample that cannot be read gets the full width, and is dealt with when its batch is made.
    """

    def part(start: int) -> list[int]:
        return [_width(source, resize, index) for index in range(start, min(start + _PART, len(source)))]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # reading waits for the disk, not for a core
        parts = list(pool.map(part, range(0, len(source), _PART)))
    return np.array([width for widths in parts for width in widths], np.int32)


def _width(source: Source, resize: Resize, index: int) -> int:
    try:
        return resize.bucket_width(*image_size(source.get(index).image))
    except (DataError, OSError):
        return resize.width
