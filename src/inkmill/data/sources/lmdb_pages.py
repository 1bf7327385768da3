"""Whether the pages of an LMDB hold together, looked at before the library opens it.

LMDB trusts its file: a page that points outside ends the process without a message. So the tree is walked from its
root: every page lies in the file and says its own number, and every node lies in its page and points into the file.
Pages of images (overflow pages) are not read. Of a very large set the first `MAX_PAGES` pages are looked at.

The layout is that of lmdb.h and mdb.c of LMDB 0.9, 64 bits, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inkmill.files import open_data

MAX_PAGES = 1 << 14
"""Some 64 MiB of keys and short values: half a million samples whose images have pages of their own."""

_META = struct.Struct("<QHHHH IIQQ 48s 48s QQ")  # page header; magic, version, address, map size; two trees; last, txn
_TREE = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf, overflow pages, entries, root
_HEADER, _NODE = 16, 8
_MAGIC, _NO_PAGE = 0xBEEFC0DE, 2**64 - 1
_BRANCH, _LEAF, _BIG = 1, 2, 1
_MAX_DEPTH = 32
_SIZES = tuple(512 << power for power in range(8))


def why_damaged(file: Path) -> str:
    """Return what does not hold together in a data.mdb, in words; empty where nothing was found. Raises OSError."""
    with open_data(file) as stream:
        if stream.seek(0, 2) < 2 * _META.size:
            return ""  # no LMDB, as the library says itself
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _walk(data)
            except (struct.error, IndexError, ValueError):
                return "a page lies outside the file"


def _walk(data: mmap.mmap) -> str:
    # 1. The newer one of the two meta pages names page size and root.
    first = _META.unpack_from(data, 0)
    size = _TREE.unpack(first[9])[0]
    if first[5] != _MAGIC:
        return ""  # no LMDB, as the library says itself
    if size not in _SIZES or len(data) < 2 * size:
        return "its first page is no head of an LMDB"
    second = _META.unpack_from(data, size)
    if second[5] != _MAGIC:
        return ""
    meta = max((first, second), key=lambda page: page[12])
    pages = len(data) // size
    _, _, depth, *_, root = _TREE.unpack(meta[10])
    if meta[11] >= pages:
        return ""  # cut short, which is said where the library has opened it
    if root == _NO_PAGE:
        return ""
    # 2. Its tree, level by level.
    pending, seen = [(root, 1)], set[int]()
    while pending and len(seen) < MAX_PAGES:
        number, level = pending.pop()
        if number >= pages or number in seen or level > min(depth, _MAX_DEPTH):
            return f"the tree of its keys leads to page {number}, which cannot be a part of it"
        seen.add(number)
        found = _children(data[number * size : (number + 1) * size], number, size, pages, data)
        if isinstance(found, str):
            return found
        pending += [(child, level + 1) for child in found]
    return ""


def _children(page: bytes, number: int, size: int, pages: int, data: mmap.mmap) -> list[int] | str:
    own, _, flags, lower, upper = struct.unpack_from("<QHHHH", page)
    count = (lower - _HEADER) // 2
    kind = flags & (_BRANCH | _LEAF)
    if own != number or kind not in (_BRANCH, _LEAF) or not (_HEADER < lower <= upper <= size) or lower % 2:
        return f"page {number} is no page of keys"
    raw = np.frombuffer(page, np.uint8)
    starts = np.frombuffer(page, "<u2", count, _HEADER).astype(np.int64)
    if starts.min() < upper or starts.max() + _NODE > size:
        return f"a key of page {number} lies outside it"
    low, high, marks, keys = (_shorts(raw, starts + 2 * at) for at in range(4))
    if kind == _BRANCH:
        if (starts + _NODE + keys).max() > size or count < 2:
            return f"a key of page {number} lies outside it"
        return (low | high << 16 | marks << 32).tolist()  # type: ignore[no-any-return]
    values = low | high << 16
    big = (marks & _BIG) != 0
    if (marks & ~_BIG).any() or (starts + _NODE + keys + np.where(big, 8, values)).max() > size:
        return f"a value of page {number} lies outside it"
    for start, length in zip((starts + _NODE + keys)[big].tolist(), values[big].tolist(), strict=True):
        (place,) = struct.unpack_from("<Q", page, start)
        if place >= pages or place * size + _HEADER + length > len(data):
            return f"a value of page {number} lies outside the file"
    return []


def _shorts(raw: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.int64]:
    return raw[at].astype(np.int64) | raw[at + 1].astype(np.int64) << 8
