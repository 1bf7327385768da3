"""Every image of a set read and decoded once, here or in worker processes, to see which of them can be used.

A task is some thousand neighbouring images and few tasks are in flight, so memory does not grow with the set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.alike import look_of
from inkmill.data.pipeline.decode import MAX_PIXELS, decode, image_size, single_threaded
from inkmill.data.sources.base import Source
from inkmill.errors import DataError, ImageError
from inkmill.processes import WorkerDiedError, local_executor

Reason = Literal["missing", "unreadable"]
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Why a picture cannot be used, in the order of the tests."""

_CHUNK = 1000  # images a task: long enough to outweigh its hand-over, short enough to show progress


class ScanResult(NamedTuple):
    """What was found in n neighbouring images.

    Attributes:
        sizes: int32 (n, 2), width and height in pixels as a viewer shows the image; 0 where unknown.
        hashes: uint64 (n,), BLAKE2b of the encoded bytes; 0 where missing.
        looks: uint64 (n, 2), see `inkmill.data.jobs.alike`; 0 where unknown.
        faults: offset, reason and detail of the images that cannot be used.
    """

    sizes: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    looks: NDArray[np.uint64]
    faults: list[tuple[int, Reason, str]]


class _Job(NamedTuple):
    """What is scanned, and how."""

    source: Source
    channels: Literal[1, 3]


def scan(source: Source, *, channels: Literal[1, 3], workers: int) -> Iterator[ScanResult]:
    """Read all images of a set and yield what was found, some thousand images at a time, in order.

    Args:
        source: the set; with workers it is pickled into each.
        channels: what to decode to: 1 gray, 3 RGB.
        workers: processes that read; 0 reads here.

    Raises:
        DataError: a worker process died.
    """
    chunks = [range(start, min(start + _CHUNK, len(source))) for start in range(0, len(source), _CHUNK)]
    processes = min(workers, len(chunks)) if len(chunks) > 1 else 0
    executor = local_executor(processes, single_threaded)
    try:
        yield from executor.map(_scan_chunk, _Job(source, channels), chunks)
    except WorkerDiedError:
        raise DataError(
            f"a process that checked {source.name} died, most often for want of memory: use fewer workers"
        ) from None


def _scan_chunk(job: _Job, chunk: range) -> ScanResult:
    count = len(chunk)
    result = ScanResult(np.zeros((count, 2), np.int32), np.zeros(count, np.uint64), np.zeros((count, 2), np.uint64), [])
    for offset, index in enumerate(chunk):
        # 1. Read the file; a missing image is a fault of this sample alone.
        try:
            image = job.source.image(index)
        except DataError as error:
            result.faults.append((offset, "missing", str(error)))
            continue
        # 2. Hash its bytes, to find duplicates.
        digest = hashlib.blake2b(image, digest_size=8).digest()
        result.hashes[offset] = int.from_bytes(digest, "little") or 1  # 0 means missing
        # 3. Read its size, and decode it.
        try:
            result.sizes[offset], result.looks[offset] = _seen(image, job)
        except ImageError as error:
            result.faults.append((offset, "unreadable", str(error)))
    return result


def _seen(image: bytes, job: _Job) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (width, height) and `look_of`; raises ImageError where the image cannot be used."""
    width, height = image_size(image)
    if width * height > MAX_PIXELS:
        raise ImageError(f"the image is {width}x{height}, more than the {MAX_PIXELS:,} pixels allowed")
    pixels = decode(image, job.channels)  # the header alone would not show damaged pixels
    return (width, height), look_of(pixels)
