"""Every image of a set read and decoded once, here or in worker processes, to see which of them can be used.

A task is some thousand neighbouring images and few tasks run at a time, so memory stays the same for any size of set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Literal, NamedTuple, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.decode import MAX_PIXELS, decode, image_size
from inkmill.data.sources.base import Source
from inkmill.errors import DataError, ImageError
from inkmill.processes import in_order

Reason = Literal["missing", "unreadable", "no_text", "empty", "out_of_charset", "over_length", "too_narrow"]
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Why a sample is not used, in the order of the tests: a sample counts under the first that it fails."""

How = tuple[bool, Literal[1, 3]]
_CHUNK = 1000


class ScanResult(NamedTuple):
    """What reading n neighbouring images showed.

    Attributes:
        sizes: int32 (n, 2), width and height in pixels as a viewer shows the image; 0 where unknown.
        hashes: uint64 (n,), BLAKE2b of the encoded bytes; 0 where missing.
        faults: offset, reason and detail of the images that cannot be used.
    """

    sizes: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    faults: list[tuple[int, Reason, str]]


def _scan(source: Source, start: int, stop: int, how: How) -> ScanResult:
    """Read and decode a chunk of images."""
    looks = ScanResult(np.zeros((stop - start, 2), np.int32), np.zeros(stop - start, np.uint64), [])
    for offset in range(stop - start):
        try:
            image = source.get(start + offset).image
        except DataError as error:
            looks.faults.append((offset, "missing", str(error)))
            continue
        digest = hashlib.blake2b(image, digest_size=8).digest()
        looks.hashes[offset] = int.from_bytes(digest, "little") or 1  # 0 means missing
        try:
            looks.sizes[offset] = _size(image, *how)
        except ImageError as error:
            looks.faults.append((offset, "unreadable", str(error)))
    return looks


def _size(image: bytes, whole: bool, channels: Literal[1, 3]) -> tuple[int, int]:
    width, height = image_size(image)
    if width * height > MAX_PIXELS:
        raise ImageError(f"the image is {width}x{height}, more than the {MAX_PIXELS:,} pixels allowed")
    if whole:
        decode(image, channels)
    return width, height


def look_at_all(source: Source, *, whole: bool, channels: Literal[1, 3], workers: int) -> Iterator[ScanResult]:
    """Read all images of a set and yield the findings, some thousand images at a time, in order.

    Args:
        source: the set; with workers it is pickled into each.
        whole: decode the images; else only their headers are read.
        channels: what to decode to.
        workers: processes that read; 0 reads here.

    Raises:
        DataError: a worker process died.
    """
    chunks = [(start, min(start + _CHUNK, len(source))) for start in range(0, len(source), _CHUNK)]
    how: How = (whole, channels)
    if workers < 1 or len(chunks) < 2:
        for start, stop in chunks:
            yield _scan(source, start, stop, how)
        return
    try:
        yield from in_order(_look_in_worker, chunks, min(workers, len(chunks)), _start_worker, source, how)
    except BrokenProcessPool:
        raise DataError(
            f"a process that checked {source.name} died, most often for want of memory: use fewer workers"
        ) from None


_in_worker: tuple[Source, How]


def _start_worker(source: Source, how: How) -> None:
    global _in_worker
    cv2.setNumThreads(1)
    _in_worker = source, how


def _look_in_worker(start: int, stop: int) -> ScanResult:
    source, how = _in_worker
    return _scan(source, start, stop, how)
