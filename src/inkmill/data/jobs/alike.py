"""Pictures that look alike though their files differ: the same photograph saved again, smaller, or in another format.

A validation set with such copies of training images measures memory. Each picture is reduced to 128 bits: is a cell of
a coarse gray image clearly brighter than its left neighbour, and than the one above (difference hash, N. Krawetz
2013)? Two pictures look alike where at most 8 of them differ: of 600 captchas and 600 photographs, each scaled to 0.8
and saved as JPEG of quality 60, all were found, of 600 words in scenes 72 %, and 2 pairs of photographs besides. Flat
pictures have no bits that mean something, and are alike to none.
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

Looks = NDArray[np.uint64]

MAX_BITS = 8
"""Bits that may differ between two pictures that look alike."""

_GRID = 9  # cells a side; 9 x 8 comparisons a direction, of which 64 are taken
_CLEARLY = 4.0  # of 255: less between two cells is noise of the file
_FLAT = 6.0  # standard deviation of the cells below which a picture is flat, 0..255
_PART_BITS, _PARTS = 12, 10  # more parts than bits that may differ: one of them is the same in pictures that are alike
_COMMON = 4096  # pictures with the same part: so many say nothing, a scan's margins perhaps
_BLOCK = 1 << 14  # pictures compared at a time, which bounds the memory


def look_of(image: NDArray[np.uint8]) -> tuple[int, int]:
    """Return the 128 bits of a picture, uint8 (H, W, C), as two numbers; (0, 0) for a flat one."""
    small = cv2.resize(image, (_GRID, _GRID), interpolation=cv2.INTER_AREA)
    gray = small if small.ndim == 2 else small.mean(axis=2)
    cells = gray.astype(np.float32)
    if cells.std() < _FLAT:
        return 0, 0
    across, down = cells[:8, 1:] > cells[:8, :-1] + _CLEARLY, cells[1:, :8] > cells[:-1, :8] + _CLEARLY
    first, second = (int.from_bytes(np.packbits(bits).tobytes(), "big") for bits in (across, down))
    return first, second


def alike(ours: Looks, theirs: Looks) -> NDArray[np.int64]:
    """Return which pictures of two sets look alike.

    Args:
        ours: uint64 (N, 2) of `look_of`.
        theirs: uint64 (M, 2).

    Returns:
        int64 (K, 2), position in `ours` and the first such position in `theirs`, ascending.
    """
    found: dict[int, int] = {}
    for here, there in _candidates(ours, theirs):
        bits = np.bitwise_count(ours[here] ^ theirs[there]).sum(axis=1)
        for one, other in zip(here[bits <= MAX_BITS].tolist(), there[bits <= MAX_BITS].tolist(), strict=True):
            found[one] = min(other, found.get(one, other))
    return np.array(sorted(found.items()), np.int64).reshape(-1, 2)


def _candidates(ours: Looks, theirs: Looks) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of positions that have a part of their bits in common, for each of the parts."""
    known, others = np.flatnonzero(ours.any(axis=1)), np.flatnonzero(theirs.any(axis=1))
    for part in range(_PARTS):
        yours = _part(theirs[others], part)
        order = np.argsort(yours, kind="stable")
        for start in range(0, len(known), _BLOCK):
            some = known[start : start + _BLOCK]
            mine = _part(ours[some], part)
            first = np.searchsorted(yours[order], mine, "left")
            count = np.searchsorted(yours[order], mine, "right") - first
            count[count > _COMMON] = 0
            row = np.repeat(np.arange(len(mine)), count)
            place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
            yield some[row], others[order[place]]


def _part(looks: Looks, part: int) -> NDArray[np.uint64]:
    word, number = divmod(part, 64 // _PART_BITS)
    mask = np.uint64((1 << _PART_BITS) - 1)
    found: NDArray[np.uint64] = (looks[:, word] >> np.uint64(_PART_BITS * number)) & mask
    return found
