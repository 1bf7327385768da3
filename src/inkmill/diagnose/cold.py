"""Cold reading: the data set's own files, and no others, dropped from the page cache.

`posix_fadvise(DONTNEED)` asks for it and promises nothing: pages that a process has mapped (an LMDB's) or that are not
written back yet stay, and some file systems do not care. So what stayed is looked up (`mincore`; a read that must not
wait would start the disk reading), and a figure that would not be cold is not given.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inkmill.data.sources import Source
from inkmill.errors import DataError

MOST_LEFT = 0.1
"""Reading counts as cold where at most this share of the looked-up pages is still in memory."""

READERS = 16
"""Threads that read at a time."""

_LOOKS = 400  # pages looked up, over all files
_PAGE = mmap.ALLOCATIONGRANULARITY
_LIBC: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of an attempt to make reading cold.

    Attributes:
        cold: whether it worked.
        why_not: one clause for the user where it did not.
        files: how many files were dropped.
        bytes: their size together.
    """

    cold: bool
    why_not: str = ""
    files: int = 0
    bytes: int = 0


def drop(source: Source, index: Sequence[int]) -> Dropped:
    """Drop the files of some samples from the page cache.

    A source that is no file may have a method `forget()`, which does the same in its own way.
    """
    if _forget(source):
        return Dropped(True)
    source.release()
    files = source.files(index)
    if not files:
        return Dropped(False, "the samples lie in no file that inkmill knows")
    if not hasattr(os, "posix_fadvise"):
        return Dropped(False, "this system has no posix_fadvise")
    size = sum(_drop(file, written=False) for file in files)
    left = resident(files)
    if left is not None and left > MOST_LEFT:  # what is not written back yet stays
        size = sum(_drop(file, written=True) for file in files)
        left = resident(files)
    if left is None:
        return Dropped(False, "this file system does not tell what is in memory", len(files), size)
    if left > MOST_LEFT:
        why = f"{left:.0%} of the pages stayed in memory (another program has them open, or the file system keeps them)"
        return Dropped(False, why, len(files), size)
    return Dropped(True, "", len(files), size)


def _forget(source: Source) -> bool:
    """Ask the sources that a source is made of to forget what they have read; return whether one could."""
    able = [leaf for leaf in source.leaves() if hasattr(leaf, "forget")]
    for leaf in able:
        leaf.forget()
    return bool(able)


def read_all(source: Source, index: Sequence[int]) -> None:
    """Read samples, so that their files are in the page cache; those that cannot be read are left out."""

    def read(row: int) -> None:
        with suppress(DataError, OSError):
            source.get(row)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, index, chunksize=1))


def _drop(file: Path, written: bool) -> int:
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return 0
    try:
        if written:
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.fstat(descriptor).st_size
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def resident(files: Sequence[Path]) -> float | None:
    """Return the share of the files' pages that is in memory, from a sample of them; None: the system does not tell."""
    if not hasattr(_LIBC, "mincore") or not files:
        return None
    rng = np.random.default_rng(0)
    each = max(1, _LOOKS // len(files))
    looks: list[bool] = []
    for number in rng.permutation(len(files))[:_LOOKS].tolist():
        found = _looks(files[number], each, rng)
        if found is None:
            return None
        looks += found
    return sum(looks) / len(looks) if looks else None


def _looks(file: Path, count: int, rng: np.random.Generator) -> list[bool] | None:
    """Return for some pages of a file whether they are in memory; looking does not bring them there."""
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            pages = -(-size // _PAGE)
            chosen = rng.integers(0, pages, min(count, pages)).tolist() if pages else []
            return [_in_memory(opened.fileno(), page * _PAGE, size) for page in chosen]
    except FileNotFoundError:
        return []
    except OSError:
        return None


def _in_memory(descriptor: int, offset: int, size: int) -> bool:
    """Raises OSError where the system does not tell."""
    length = min(_PAGE, size - offset)
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=offset) as mapped:
        pages = (ctypes.c_ubyte * (-(-length // mmap.PAGESIZE)))()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), pages)
        finally:
            del first  # the mapping cannot be closed while something points into it
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return bool(pages[0] & 1)
