"""The cache of resized pictures, so that no image is read and decoded twice.

Everything before augmentation is the same in every epoch (read, decode, resize), so its result can be cached, for
training as for validation: batches are the same to the last byte with and without. Whoever decodes first fills it.

    disk    a memory-mapped file in a cache folder, shared by workers, ranks and later runs
    ram     anonymous memory shared by the workers of one loader; gone with it

A cache smaller than the data set keeps the first samples of the data set and never evicts: with a shuffled order
each epoch then saves the same share, where a cache that evicts would save almost nothing. Rows are written before the
byte that says so, and on the disk carry a CRC-32 that is checked once a run; what a crash or a bad disk left behind is
decoded again. The file's name and header hold the source's fingerprint and the digest of `Resize`: other data have
another cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import secrets
import shutil
import weakref
import zlib
from dataclasses import dataclass, field
from multiprocessing.heap import Arena
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill import shared_memory as shared
from inkmill.data.pipeline.cache_pages import Layout, Pages
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources.base import Source
from inkmill.errors import OutputError
from inkmill.files import explain

Tier = Literal["none", "disk", "ram"]
Pixels = NDArray[np.uint8]

_MAGIC = b"inkmill keep 1\n"
_HEADER = 4096  # bytes: one page, so that all that follows is aligned


def default_cache_dir() -> Path:
    """Return ~/.cache/inkmill, or inkmill's folder under XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inkmill"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Which tier caches resized pictures.

    Attributes:
        tier: none, disk or ram.
        max_gib: largest size of the cache, in GiB.
        folder: where the disk tier lies; `default_cache_dir()` where None.
    """

    tier: Tier = "none"
    max_gib: float = 32.0
    folder: Path | None = None


@dataclass(slots=True)
class ImageCache:
    """Resized pictures of one source. Opened by the loader, pickled into its workers as they start.

    Attributes:
        notes: what a user should know about this cache: rebuilt, or partial.
    """

    layout: Layout
    path: Path | None
    memory: Arena | None
    checked: Arena | None  # one byte a row, shared by the workers: its checksum was compared in this run
    notes: list[str] = field(default_factory=list)
    _opened: Pages | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        return self.layout, self.path, self.memory, self.checked

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.layout, self.path, self.memory, self.checked = state
        self.notes, self._opened = [], None

    def read(
        self, index: NDArray[np.int64], images: Pixels, widths: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], int]:
        """Copy the cached pictures into a batch.

        Args:
            index: int64 (B,), samples of one picture width.
            images: uint8 (B, H, W, C), written where a picture is cached.
            widths: int32 (B,), likewise.

        Returns:
            bool (B,), which were cached; and how many were found damaged, which count as not cached.
        """
        cache = self._open()
        hit = index < self.layout.rows
        hit[hit] = cache.filled[index[hit]] == 1
        found = index[hit]
        if not len(found):
            return hit, 0
        start, rows, size = self.layout.blocks.get(images.shape[2], (0, 0, 0))
        block, places = cache.pixels[start : start + rows * size].reshape(rows, size), self.layout.place[found]
        flat = images.reshape(len(images), -1)
        if hit.all():
            np.take(block, places, axis=0, out=flat, mode="clip")  # clip: other modes copy through a buffer
        else:
            flat[hit] = block[places]
        widths[hit] = cache.widths[found]
        return hit, self._check(index, flat, widths, hit)

    def _check(self, index: NDArray[np.int64], flat: Pixels, widths: NDArray[np.int32], hit: NDArray[np.bool_]) -> int:
        """Compare checksums that nobody compared yet in this run; take back the hits that fail. Memory has none."""
        if self.checked is None:
            return 0
        sums, checked = self._open().sums, np.frombuffer(self.checked.buffer, np.uint8)
        damaged = 0
        for row in np.flatnonzero(hit)[checked[index[hit]] == 0]:
            sample = index[row]
            if zlib.crc32(flat[row].data, int(widths[row])) == sums[sample]:
                checked[sample] = 1
            else:
                hit[row] = False
                damaged += 1
        return damaged

    def write(self, index: NDArray[np.int64], images: Pixels, widths: NDArray[np.int32]) -> None:
        """Cache pictures, where they lie within the cap; the same arrays as `read`.

        Raises:
            OutputError: the disk fails.
        """
        fits = index < self.layout.rows
        if not fits.all():
            index, images, widths = index[fits], images[fits], widths[fits]
        if not len(index):
            return
        cache, flat = self._open(), images.reshape(len(images), -1)
        start, _, size = self.layout.blocks[images.shape[2]]
        cache.filled[index] = 0  # while a row changes it must not look whole
        try:
            cache.write(start + self.layout.place[index] * size, flat)
        except OSError as error:
            raise OutputError(f"cannot cache pictures in {self.path or 'shared memory'}: {explain(error)}") from error
        cache.widths[index] = widths
        if self.checked is not None:
            sums = (zlib.crc32(row.data, width) for row, width in zip(flat, widths.tolist(), strict=True))
            cache.sums[index] = np.fromiter(sums, np.uint32, len(index))
        cache.filled[index] = 1

    def page(self, index: int) -> tuple[Pixels | None, bool]:
        """Return one picture of a cache of `page_bytes`, uint8, in one dimension, or None; and whether it was damaged.

        The array is the cache's own memory: it must not be changed.
        """
        if index >= self.layout.rows or self.layout.page_bytes is None:
            return None, False
        cache, start = self._open(), int(self.layout.place[index])
        if cache.filled[index] != 1:
            return None, False
        page = cache.pixels[start : start + int(self.layout.page_bytes[index])]
        if self.checked is not None:
            checked = np.frombuffer(self.checked.buffer, np.uint8)
            if not checked[index]:
                if zlib.crc32(page.data) != cache.sums[index]:
                    return None, True
                checked[index] = 1
        return page, False

    def keep_page(self, index: int, page: Pixels) -> None:
        """Cache one picture, contiguous, of exactly its `page_bytes`, where it lies within the cap.

        Raises:
            OutputError: the disk fails.
        """
        if index >= self.layout.rows:
            return
        cache, flat = self._open(), page.reshape(-1)
        cache.filled[index] = 0
        try:
            cache.write(self.layout.place[index : index + 1], [flat])
        except OSError as error:
            raise OutputError(f"cannot cache pictures in {self.path or 'shared memory'}: {explain(error)}") from error
        cache.widths[index] = page.shape[1]
        if self.checked is not None:
            cache.sums[index] = zlib.crc32(flat.data)
        cache.filled[index] = 1

    def filled(self) -> int:
        """Return how many pictures are cached now."""
        return int(np.count_nonzero(self._open().filled))

    def close(self) -> None:
        """Let go of the memory; the file of the disk tier stays."""
        self._opened = None

    def _open(self) -> Pages:
        if self._opened is None:
            if self.path is not None:
                descriptor = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0))
                self._opened = Pages(mmap.mmap(descriptor, 0), self.layout, _HEADER, descriptor)
                weakref.finalize(self._opened, os.close, descriptor)
            else:
                assert self.memory is not None
                self._opened = Pages(self.memory.buffer, self.layout, 0, shared.descriptor_of(self.memory))
        return self._opened


def open_cache(
    cache: CacheConfig,
    source: Source,
    resize: Resize,
    bucket_widths: NDArray[np.integer] | None = None,
    page_bytes: NDArray[np.int64] | None = None,
) -> ImageCache | None:
    """Open the cache of `source` resized by `resize`, or make it.

    Args:
        cache: which tier, how large, and where.
        source: the samples.
        resize: how they are brought to the input size.
        bucket_widths, page_bytes: see Layout.

    Returns:
        None for the tier "none".

    Raises:
        OutputError: the cache folder cannot be written.
    """
    if cache.tier == "none":
        return None
    limit, cause = int(cache.max_gib * 2**30), f"the cap is {cache.max_gib:g} GiB"
    left = shared.bytes_left() if cache.tier == "ram" else None
    if left is not None and left * 3 // 4 < limit:  # the rest is for batches on their way
        limit, cause = left * 3 // 4, f"shared memory has {left / 2**30:.1f} GiB left"
    layout = Layout(resize, len(source), bucket_widths, limit, page_bytes)
    notes = []
    if layout.rows < len(source):
        notes.append(f"keeps {layout.rows:,} of {len(source):,} pictures: {cause}")
    if cache.tier == "ram":
        return ImageCache(layout, None, shared.allocate(layout.total), None, notes)
    checked = shared.allocate(layout.rows)
    folder = cache.folder or default_cache_dir()
    header = {
        "source": source.fingerprint,
        "samples": len(source),
        "resize": resize.digest(),
        "opencv": cv2.__version__,  # another version may resize by other arithmetic
        "layout": layout.digest(),
    }
    name = re.sub(r"[^\w.-]+", "_", source.name)[:60] or "source"
    path = folder / f"{name}-{hashlib.sha256(json.dumps(header).encode()).hexdigest()[:16]}.keep"
    if path.exists():
        problem = _problem(path, header, layout)
        if problem is None:
            return ImageCache(layout, path, None, checked, notes)
        notes.append(f"{path} was rebuilt: {problem}")
        path.unlink(missing_ok=True)
    _create(path, header, layout)
    return ImageCache(layout, path, None, checked, notes)


def _header_bytes(header: dict[str, Any]) -> bytes:
    return (_MAGIC + json.dumps(header).encode()).ljust(_HEADER, b"\n")


def _problem(path: Path, header: dict[str, Any], layout: Layout) -> str | None:
    """Say why a cache cannot be used, or None."""
    if path.stat().st_size != _HEADER + layout.total:
        return f"it has {path.stat().st_size:,} bytes where {_HEADER + layout.total:,} are expected"
    with path.open("rb") as file:
        found = file.read(_HEADER)
    return None if found == _header_bytes(header) else "its header is damaged or of other data"


def _create(path: Path, header: dict[str, Any], layout: Layout) -> None:
    """Write an empty cache beside `path` and give it that name; where another rank was faster, its cache is used."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = _HEADER + layout.total
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise OutputError(
                f"{path.parent} has {free / 2**30:.1f} GiB free and the cached pictures need {size / 2**30:.1f}:"
                " lower max_gib or name another folder"
            )
        # Not tempfile.mkstemp: its files are for their owner alone, and a folder may be shared.
        temporary = path.parent / f".keep-{secrets.token_hex(8)}"
        with temporary.open("xb") as file:
            file.write(_header_bytes(header))
            file.truncate(size)
            shared.reserve(file.fileno(), size)
        _publish(temporary, path)
    except OSError as error:
        raise OutputError(
            f"the cached pictures cannot be stored in {path.parent}: {error.strerror or error}"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)  # unlike a rename it fails when the name is taken
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        with contextlib.suppress(FileExistsError):
            temporary.rename(path)
