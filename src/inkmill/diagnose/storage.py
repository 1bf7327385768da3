"""The disk: how long a read waits, how many reads it serves at a time, and what one large file would gain.

A read costs `latency + bytes / bandwidth`. Of small files nearly all is latency, which a disk or a network pays for
each file, and much less of it for neighbours in one large file. How much less is measured: some of the user's samples
are written as a tar shard beside the results, and read from there as training would.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time

import numpy as np

from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import Source, Subset, open_source
from inkmill.diagnose.cold import READERS, drop, read_all
from inkmill.errors import DataError, OutputError

WORTH_CONVERTING = 1.5
"""Reading must get faster by this factor before converting is recommended."""

_FEWEST = 8
_SHARD_BYTES = 32 << 20
_SHARD_SAMPLES = 2000
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "fuse",
    "ceph",
    "lustre",
    "beegfs",
    "gpfs",
    "glusterfs",
    "9p",
    "virtiofs",
)


@dataclass(frozen=True)
class Storage:
    """How the data set's storage behaves, cold.

    Attributes:
        kind: "SSD", "rotating disk", "network (nfs4)", "memory", or "unknown".
        image_bytes: mean size of an encoded image.
        warm_s: a read from the page cache.
        cold_s: a read from the disk, alone; None where reading could not be made cold.
        wait_s: what getting a decoded image takes longer cold, waiting; its core is free for others meanwhile.
        fetch_s: what it takes longer of the core: the system's own work, and decoding with caches that others used.
        at_a_time: how many cold reads at a time pay, up to 16; 1 where the samples are no files of their own, for
            what is mapped into memory (an LMDB) one process reads one at a time, whatever the disk can do.
        latency_s, bytes_per_s: the model's two numbers; None where the sizes differ too little to tell.
        small_files: the samples are files of their own.
        shard_s: a cold read from a shard of the same samples; None where that was not tried.
        notes: what was not measured and why.
    """

    kind: str
    image_bytes: float
    warm_s: float
    cold_s: float | None = None
    wait_s: float = 0.0
    fetch_s: float = 0.0
    at_a_time: float = 1.0
    latency_s: float | None = None
    bytes_per_s: float | None = None
    small_files: bool = False
    shard_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float | None:
        """By what factor cold reads get faster from shards; None where it was not measured."""
        return None if self.cold_s is None or self.shard_s is None else self.cold_s / self.shard_s

    @property
    def converting_pays(self) -> bool:
        """Whether shards are recommended: many small files whose reading they make much faster."""
        return self.small_files and self.gain is not None and self.gain >= WORTH_CONVERTING


def measure_storage(source: Source, scratch: Path, seconds: float) -> Storage:
    """Measure reads of a source's samples, warm and cold.

    Args:
        source: samples in random order; each is read cold at most once.
        scratch: folder for the trial shard, which is removed again.
        seconds: time for reading, about.
    """
    kind, small = disk_kind(source), any(leaf.small_files for leaf in source.leaves())
    rows = list(range(min(len(source), 4 * _SHARD_SAMPLES)))
    seen = _read(source, rows, seconds / 8).rows
    warm = _read(source, seen, seconds / 8)
    sizes = float(np.mean(_bytes_of(source, seen)))
    dropped = drop(source, rows)
    if not dropped.cold:
        return Storage(kind, sizes, warm.mean, small_files=small, notes=(f"no cold reads: {dropped.why_not}",))
    cold = _read(source, rows, seconds / 4)
    latency, bandwidth = line_of(_bytes_of(source, cold.rows), cold.times)
    at_a_time, more = _concurrency(source, rows[len(cold.rows) :], cold.mean, seconds / 4) if small else (1.0, [])
    shard, notes = None, list[str]()
    if small and cold.mean > 2 * warm.mean:
        shard, note = _from_shard(Subset(source, [*cold.rows, *more]), scratch, seconds / 4)
        notes += [note] if note else []
    fetch = max(0.0, cold.core_s - warm.core_s)
    return Storage(
        kind,
        sizes,
        warm.mean,
        cold.mean,
        wait_s=max(0.0, cold.decoded_s - warm.decoded_s - fetch),
        fetch_s=fetch,
        at_a_time=at_a_time,
        latency_s=latency,
        bytes_per_s=bandwidth,
        small_files=small,
        shard_s=shard,
        notes=tuple(notes),
    )


def line_of(sizes: Sequence[int], times: Sequence[float]) -> tuple[float | None, float | None]:
    """Return (latency in seconds, bytes a second) of reads: a line through the middle times of small and large files.

    Medians, for a few reads of any disk take many times the others. None where large files do not take longer.
    """
    order = np.argsort(sizes, kind="stable")
    quarter = len(order) // 4
    if quarter < 2:
        return None, None
    by_size, by_time = np.asarray(sizes, float)[order], np.asarray(times)[order]
    small, large = slice(0, quarter), slice(-quarter, None)
    (x0, y0), (x1, y1) = ((float(np.median(by_size[part])), float(np.median(by_time[part]))) for part in (small, large))
    if x1 < 2 * x0 or y1 <= y0:
        return float(np.median(by_time)), None
    slope = (y1 - y0) / (x1 - x0)
    return max(0.0, y0 - slope * x0), 1 / slope


@dataclass(frozen=True)
class _Reads:
    """The time of each read and the samples read; the mean time of reading and decoding, and of the core in it."""

    times: list[float]
    rows: list[int]
    decoded_s: float
    core_s: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.times)) if self.times else 0.0


def _read(source: Source, rows: Sequence[int], seconds: float) -> _Reads:
    """Read and decode samples one after the other for a while."""
    times: list[float] = []
    read: list[int] = []
    start, core = perf_counter(), thread_time()
    for row in rows:
        began = perf_counter()
        try:
            image = source.get(row).image
            ended = perf_counter()
            decode(image, 3)
        except (DataError, OSError):
            continue
        times.append(ended - began)
        read.append(row)
        if ended > start + seconds and len(read) >= _FEWEST:
            break
    count = max(1, len(read))
    return _Reads(times, read, (perf_counter() - start) / count, (thread_time() - core) / count)


def _concurrency(source: Source, rows: Sequence[int], alone: float, seconds: float) -> tuple[float, Sequence[int]]:
    """Return how many cold reads are served at a time, and which samples were read for it."""
    if len(rows) < 2 * READERS:
        return 1.0, []
    chosen = rows[: max(2 * READERS, round(seconds / alone * READERS / 2))]
    began = perf_counter()
    read_all(source, chosen)
    return min(float(READERS), max(1.0, alone * len(chosen) / (perf_counter() - began))), chosen


def _from_shard(part: Source, scratch: Path, seconds: float) -> tuple[float | None, str]:
    """Return the time of a cold read from a shard of some samples, or a note that says why there is none."""
    mean = float(np.mean(_bytes_of(part, range(min(64, len(part))))))
    count = min(len(part), max(_FEWEST, int(_SHARD_BYTES / max(1.0, mean))))
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="inkmill-shard-", dir=scratch))
    except OSError as error:
        return None, f"no trial shard: {scratch} cannot be written ({error.strerror})"
    try:
        convert(Subset(part, range(count)), folder / "shards", "shards", workers=0)
        shard = open_source(SourceSpec(path=str(folder / "shards")))
        rows = np.random.default_rng(0).permutation(len(shard)).tolist()
        dropped = drop(shard, rows)
        if not dropped.cold:
            return None, f"the trial shard could not be read cold: {dropped.why_not}"
        note = "" if _device(folder) in map(_device, part.files(range(1))) else "the trial shard lay on another disk"
        return _read(shard, rows, seconds).mean, note
    except (DataError, OutputError) as error:
        return None, f"no trial shard: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bytes_of(source: Source, rows: Sequence[int]) -> list[int]:
    found = []
    for row in rows:
        try:
            found.append(len(source.get(row).image))
        except (DataError, OSError):
            found.append(0)
    return found


def disk_kind(source: Source) -> str:
    """Return what kind of storage holds the first sample, as far as the system tells."""
    files = source.files([0])
    return kind_of_place(files[0]) if files else "unknown"


def kind_of_place(path: Path) -> str:
    """Return "SSD", "rotating disk", "network (...)", "memory" or "unknown" for the file system that holds a file."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        resolved = str(path.resolve())
    except OSError:
        return "unknown"
    best, kind = "", ""
    for line in mounts:
        _, place, system, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        inside = resolved == place or resolved.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, system
    if kind in ("tmpfs", "ramfs"):
        return "memory"
    if kind.split(".")[0] in _NETWORK:
        return f"network ({kind})"
    return _rotation(path)


def _rotation(path: Path) -> str:
    number = _device(path)
    if number is None:
        return "unknown"
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for queue in (place / "queue", place.resolve().parent / "queue"):  # a partition's is its disk's
        with suppress(OSError, ValueError):
            told = (queue / "rotational").read_text(encoding="ascii").strip()
            return "rotating disk" if told == "1" else "SSD"
    return "unknown"


def _device(path: Path) -> int | None:
    try:
        return path.stat().st_dev
    except OSError:
        return None
