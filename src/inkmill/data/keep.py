"""Keep: fitted pictures, so that no image is read and decoded twice.

Everything before augmentation is the same in every epoch (read, decode, fit), so its result can be kept, for training
as for validation: batches are the same to the last byte with and without. A store is filled by whoever decodes first.

    disk    a memory-mapped file in a cache folder, shared by workers, ranks and later runs
    ram     anonymous memory shared by the workers of one loader; gone with it

A store that does not fit its size cap keeps the first samples of the data set and never evicts: with a shuffled order
each epoch then saves the same share, where a cache that evicts would save almost nothing. Rows are written before the
byte that says so, and carry a CRC-32 that is checked once a run; what a crash or a bad disk left behind is decoded
anew. The file's name and header hold the source's fingerprint and the fit's digest: other data, another store.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import shutil
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data import shared
from inkmill.data.fit import Fit
from inkmill.data.sample import Source
from inkmill.errors import OutputError

Tier = Literal["none", "disk", "ram"]
Pixels = NDArray[np.uint8]

_MAGIC = b"inkmill keep 1\n"
_HEADER = 4096  # bytes: one page, so that all that follows is aligned


def default_cache_dir() -> Path:
    """Return ~/.cache/inkmill, or inkmill's folder under XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inkmill"


@dataclass(frozen=True, slots=True)
class Keep:
    """Which tier keeps fitted pictures.

    Attributes:
        tier: none, disk or ram.
        max_gib: largest size of the store, in GiB.
        folder: where the disk tier lies; `default_cache_dir()` where None.
    """

    tier: Tier = "none"
    max_gib: float = 32.0
    folder: Path | None = None


class Layout:
    """Where each sample's picture lies: samples of one width form one block, a 2-D array that a batch gathers from.

    Args:
        fit: gives height, channels and, without buckets, the width.
        length: samples in the source.
        bucket_widths: int (N,), or None when all pictures have the width of `fit`.
        max_bytes: samples beyond this size are not kept.
    """

    def __init__(self, fit: Fit, length: int, bucket_widths: NDArray[np.integer] | None, max_bytes: int) -> None:
        column = fit.height * fit.channels
        if bucket_widths is None:
            self.rows = min(length, max_bytes // (column * fit.width))
            self.place = np.arange(self.rows, dtype=np.int64)
            self.blocks = {fit.width: (0, self.rows, column * fit.width)}
            self.nbytes = self.rows * column * fit.width
            return
        sizes = np.cumsum(np.asarray(bucket_widths, np.int64) * column)
        self.rows = int(np.searchsorted(sizes, max_bytes, side="right"))
        self.nbytes = int(sizes[self.rows - 1]) if self.rows else 0
        kept = np.asarray(bucket_widths)[: self.rows]
        self.place = np.empty(self.rows, np.int64)
        self.blocks, start = {}, 0
        for width in np.unique(kept).tolist():
            members = np.flatnonzero(kept == width)
            self.place[members] = np.arange(len(members))
            self.blocks[width] = (start, len(members), column * width)
            start += len(members) * column * width

    def digest(self) -> str:
        """Return what the header says about where pictures lie."""
        return hashlib.sha256(repr(self.blocks).encode() + self.place.tobytes()).hexdigest()[:16]


@dataclass(slots=True)
class Store:
    """Fitted pictures of one source. Opened by the loader, pickled into its workers as they start.

    Attributes:
        notes: what a user should know about this store: rebuilt, or partial.
    """

    layout: Layout
    path: Path | None
    memory: Any
    checked: Any  # one byte a row, shared by the workers: its checksum was compared in this run
    notes: list[str] = field(default_factory=list)
    _views: tuple[Any, ...] | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        return self.layout, self.path, self.memory, self.checked

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.layout, self.path, self.memory, self.checked = state
        self.notes, self._views = [], None

    def read(
        self, index: NDArray[np.int64], images: Pixels, widths: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], int]:
        """Copy the pictures that are kept into their rows of a batch.

        Args:
            index: int64 (B,), samples of one picture width.
            images: uint8 (B, H, W, C), written where a picture is kept.
            widths: int32 (B,), likewise.

        Returns:
            bool (B,), which rows were kept; and how many were found damaged, which count as not kept.
        """
        filled, kept_widths, _, _ = self._open()
        hit = index < self.layout.rows
        hit[hit] = filled[index[hit]] == 1
        found = index[hit]
        if not len(found):
            return hit, 0
        block, places = self._block(images.shape[2]), self.layout.place[found]
        flat = images.reshape(len(images), -1)
        if hit.all():
            np.take(block, places, axis=0, out=flat, mode="clip")  # clip: other modes copy through a buffer
        else:
            flat[hit] = block[places]
        widths[hit] = kept_widths[found]
        return hit, self._check(index, flat, widths, hit)

    def _check(self, index: NDArray[np.int64], flat: Pixels, widths: NDArray[np.int32], hit: NDArray[np.bool_]) -> int:
        """Compare checksums that nobody compared yet in this run; take back the hits that fail."""
        sums = self._open()[2]
        checked = np.frombuffer(self.checked, np.uint8)
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
        """Keep pictures, where they lie within the cap; the same arrays as `read`."""
        filled, kept_widths, sums, _ = self._open()
        fits = np.flatnonzero(index < self.layout.rows)
        if not len(fits):
            return
        block = self._block(images.shape[2])
        for row in fits:
            sample = index[row]
            filled[sample] = 0  # while the row changes it must not look whole
            pixels = images[row].reshape(-1)
            block[self.layout.place[sample]] = pixels
            kept_widths[sample] = widths[row]
            sums[sample] = zlib.crc32(pixels.data, int(widths[row]))
            filled[sample] = 1

    def filled(self) -> int:
        """Return how many pictures are kept now."""
        return int(np.count_nonzero(self._open()[0]))

    def close(self) -> None:
        """Let go of the memory; the file of the disk tier stays."""
        self._views = None

    def _block(self, width: int) -> Pixels:
        start, rows, size = self.layout.blocks.get(width, (0, 0, 0))
        block: Pixels = self._open()[3][start : start + rows * size].reshape(rows, size)
        return block

    def _open(self) -> tuple[Any, ...]:
        if self._views is None:
            self._views = _views(
                _map(self.path) if self.path else self.memory, self.layout, _HEADER if self.path else 0
            )
        return self._views


def open_store(keep: Keep, source: Source, fit: Fit, bucket_widths: NDArray[np.integer] | None = None) -> Store | None:
    """Open the store of `source` fitted by `fit`, or make it.

    Returns:
        None for the tier "none".

    Raises:
        OutputError: the cache folder cannot be written.
    """
    if keep.tier == "none":
        return None
    limit, cause = int(keep.max_gib * 2**30), f"the cap is {keep.max_gib:g} GiB"
    left = shared.bytes_left() if keep.tier == "ram" else None
    if left is not None and left * 3 // 4 < limit:  # the rest is for batches on their way
        limit, cause = left * 3 // 4, f"shared memory has {left / 2**30:.1f} GiB left"
    layout = Layout(fit, len(source), bucket_widths, limit)
    notes = []
    if layout.rows < len(source):
        notes.append(f"keeps {layout.rows:,} of {len(source):,} pictures: {cause}")
    checked = shared.allocate(layout.rows)
    if keep.tier == "ram":
        return Store(layout, None, shared.allocate(_total(layout)), checked, notes)
    folder = keep.folder or default_cache_dir()
    header = {
        "source": source.fingerprint,
        "samples": len(source),
        "fit": fit.digest(),
        "opencv": cv2.__version__,  # another version may resize by other arithmetic
        "layout": layout.digest(),
    }
    name = re.sub(r"[^\w.-]+", "_", source.name)[:60] or "source"
    path = folder / f"{name}-{hashlib.sha256(json.dumps(header).encode()).hexdigest()[:16]}.keep"
    if path.exists():
        problem = _problem(path, header, layout)
        if problem is None:
            return Store(layout, path, None, checked, notes)
        notes.append(f"{path} was rebuilt: {problem}")
        path.unlink(missing_ok=True)
    _create(path, header, layout)
    return Store(layout, path, None, checked, notes)


def _total(layout: Layout) -> int:
    return 9 * layout.rows + -9 * layout.rows % 8 + layout.nbytes


def _views(buffer: Any, layout: Layout, offset: int) -> tuple[Any, ...]:
    """Cut a buffer into checksums uint32 (N,), widths int32 (N,), filled uint8 (N,) and pixels."""
    rows = layout.rows
    sums = np.frombuffer(buffer, np.uint32, rows, offset)
    widths = np.frombuffer(buffer, np.int32, rows, offset + 4 * rows)
    filled = np.frombuffer(buffer, np.uint8, rows, offset + 8 * rows)
    pixels = np.frombuffer(buffer, np.uint8, layout.nbytes, offset + 9 * rows + -9 * rows % 8)
    return filled, widths, sums, pixels


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _header_bytes(header: dict[str, Any]) -> bytes:
    return (_MAGIC + json.dumps(header).encode()).ljust(_HEADER, b"\n")


def _problem(path: Path, header: dict[str, Any], layout: Layout) -> str | None:
    """Say why a store cannot be used, or None."""
    if path.stat().st_size != _HEADER + _total(layout):
        return f"it has {path.stat().st_size:,} bytes where {_HEADER + _total(layout):,} are expected"
    with path.open("rb") as file:
        found = file.read(_HEADER)
    return None if found == _header_bytes(header) else "its header is damaged or of other data"


def _create(path: Path, header: dict[str, Any], layout: Layout) -> None:
    """Write an empty store beside `path` and give it that name; where another rank was faster, its store is used."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = _HEADER + _total(layout)
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise OutputError(
                f"{path.parent} has {free / 2**30:.1f} GiB free and the kept pictures need {size / 2**30:.1f}:"
                " lower keep's max_gib or name another folder"
            )
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".keep-")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_header_bytes(header))
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # a sparse file on a full disk would kill the process that writes it
                os.posix_fallocate(file.fileno(), 0, size)
        _publish(temporary, path)
    except OSError as error:
        raise OutputError(f"the kept pictures cannot be stored in {path.parent}: {error.strerror or error}") from error
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
