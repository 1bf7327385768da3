"""The bytes of a cache: where each picture lies, and how it gets there.

Pictures are read through mapped memory and written by `os.pwrite`. A page that is mapped for writing costs each process
a fault, and where many processes fill a cache at once, in a virtual machine above all, they wait for one another there;
the pages of the file exist already, and writing to it maps none.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.resize import Resize

Pixels = NDArray[np.uint8]


class Layout:
    """Where each sample's picture lies: samples of one width form one block, a 2-D array that a batch gathers from.

    Args:
        resize: gives channels, the height of each width and, without buckets, the width.
        length: samples in the source.
        bucket_widths: int (N,), or None when all pictures have the width of `resize`.
        max_bytes: samples beyond this size are not cached.
        page_bytes: int64 (N,), the bytes of each picture, where every one has a size of its own; such lie one behind
            the other, and no batch is gathered from them.
    """

    def __init__(
        self,
        resize: Resize,
        length: int,
        bucket_widths: NDArray[np.integer] | None,
        max_bytes: int,
        page_bytes: NDArray[np.int64] | None = None,
    ) -> None:
        self.page_bytes = page_bytes
        if page_bytes is not None:
            ends = np.cumsum(page_bytes)
            self.rows = int(np.searchsorted(ends, max_bytes, side="right"))
            self.place = (ends - page_bytes)[: self.rows]
            self.nbytes = int(ends[self.rows - 1]) if self.rows else 0
            self.blocks: dict[int, tuple[int, int, int]] = {}
            return
        if bucket_widths is None:
            size = resize.height * resize.width * resize.channels
            self.rows = min(length, max_bytes // size)
            self.place = np.arange(self.rows, dtype=np.int64)
            self.blocks = {resize.width: (0, self.rows, size)}
            self.nbytes = self.rows * size
            return
        widths, which = np.unique(bucket_widths, return_inverse=True)
        bytes_of = {width: resize.rows(width) * width * resize.channels for width in widths.tolist()}
        sizes = np.cumsum(np.array([*bytes_of.values()], np.int64)[which])
        self.rows = int(np.searchsorted(sizes, max_bytes, side="right"))
        self.nbytes = int(sizes[self.rows - 1]) if self.rows else 0
        cached = np.asarray(bucket_widths)[: self.rows]
        self.place = np.empty(self.rows, np.int64)
        self.blocks, start = {}, 0
        for width in np.unique(cached).tolist():
            members = np.flatnonzero(cached == width)
            self.place[members] = np.arange(len(members))
            self.blocks[width] = (start, len(members), bytes_of[width])
            start += len(members) * bytes_of[width]

    @property
    def total(self) -> int:
        """Bytes of a cache: checksums, widths and marks of all rows, and the pictures."""
        return 9 * self.rows + -9 * self.rows % 8 + self.nbytes

    def digest(self) -> str:
        """Return what the header says about where pictures lie."""
        return hashlib.sha256(repr(self.blocks).encode() + self.place.tobytes()).hexdigest()[:16]


class Pages:
    """The parts of a cache: checksums uint32 (N,), widths int32 (N,), filled uint8 (N,) and pixels.

    Args:
        memory: the mapped file.
        layout: of the cache.
        offset: where it begins in the file.
        descriptor: the file, or None where only its memory can be had.
    """

    def __init__(self, memory: mmap.mmap, layout: Layout, offset: int, descriptor: int | None) -> None:
        rows = layout.rows
        self.sums = np.frombuffer(memory, np.uint32, rows, offset)
        self.widths = np.frombuffer(memory, np.int32, rows, offset + 4 * rows)
        self.filled = np.frombuffer(memory, np.uint8, rows, offset + 8 * rows)
        self._pixels_at = offset + 9 * rows + -9 * rows % 8
        self.pixels = np.frombuffer(memory, np.uint8, layout.nbytes, self._pixels_at)
        self._descriptor = descriptor if hasattr(os, "pwrite") else None

    def write(self, places: NDArray[np.int64], rows: Pixels | list[Pixels]) -> None:
        """Write rows of pixels, contiguous, at these offsets; raises OSError."""
        if self._descriptor is None:  # Windows
            for place, row in zip(places.tolist(), rows, strict=True):
                self.pixels[place : place + len(row)] = row
            return
        for place, row in zip((places + self._pixels_at).tolist(), rows, strict=True):
            if os.pwrite(self._descriptor, row.data, place) != len(row):
                raise OSError(errno.ENOSPC, "cut short")
