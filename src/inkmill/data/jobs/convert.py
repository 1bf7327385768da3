"""Any data set becomes an LMDB, tar shards, or a label file with images: TAO's dataset_convert, and the way back.

The images' bytes are kept as they are. Every image is decoded once, so that what was converted can be read; what
cannot is copied to DESTINATION.rejected with the reasons.
"""

from __future__ import annotations

import os
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inkmill.data.formats import FORMATS, Entry, LabelFormat
from inkmill.data.jobs.convert_chunk import Chunk, ChunkResult, ConvertPlan, convert_chunk, label_text
from inkmill.data.jobs.rejects import REJECTS, append_rejects
from inkmill.data.jobs.staging import MANIFEST, Staging, count_files
from inkmill.data.pipeline.decode import single_threaded
from inkmill.data.sources.base import PackedStrings, Source, fingerprint, repeats
from inkmill.data.sources.lmdb import LmdbWriter
from inkmill.data.sources.shards import index_path
from inkmill.data.types import Labels, Text
from inkmill.errors import ConfigError, DataError
from inkmill.files import write_json_atomic, write_text_atomic, writing
from inkmill.processes import Executor, WorkerDiedError, local_executor
from inkmill.registry import suggest
from inkmill.version import __version__

Progress = Callable[[int, int], None]
Kind = Literal["lmdb", "shards"] | str

_STORES = ("lmdb", "shards")
_CHUNK = 256  # samples a task, for all kinds but shards, where a task is a shard
_WORTH_WORKERS = 5000  # samples from which on processes gain more than their start costs
_MOST_WORKERS = 16


def convert(
    source: Source,
    destination: str | os.PathLike[str],
    kind: Kind = "lmdb",
    *,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    shard_size: int = 10_000,
    seed: int = 0,
) -> ConvertReport:
    """Convert a data set.

    The destination appears when all is done, whole; a run that is killed leaves the old data, or nothing. Memory
    does not grow with the number of samples.

    Args:
        source: what to convert (see `sources.open_source`).
        destination: folder to make.
        kind: `lmdb` (TAO's and CLOVA's keys), `shards` (WebDataset tars with an index for DALI), or the name of a
            label format, whose file is written beside the images.
        workers: processes that read and decode; by default one a core for large sets, none for small ones.
        overwrite: replace an existing converted set.
        progress: called with (samples done, samples in all) after every chunk.
        shard_size: samples a shard, before damaged ones are left out.
        seed: of the order in which shards are filled; the other kinds keep the source's order.

    Raises:
        OutputError: the destination is not empty or cannot be written.
        DataError: not one sample could be converted.
        ConfigError: no such kind, or a number out of range.
    """
    if kind not in _STORES and kind not in FORMATS:
        known = (*_STORES, *FORMATS.names())
        raise ConfigError(f"cannot convert to {kind!r}{suggest(kind, known)}; known: {', '.join(known)}")
    if shard_size < 1 or (workers is not None and workers < 0):
        raise ConfigError(f"shard_size must be at least 1 and workers at least 0, and are {shard_size} and {workers}")
    with Staging(destination, overwrite) as staging:
        # 1. Plan: names that two samples would share are found before workers run.
        plan = _plan(source, kind, staging)
        chunks = _chunks(source, kind, shard_size, seed)
        executor = local_executor(_workers(workers, len(source)), single_threaded)
        # 2. Convert chunk by chunk: workers read, decode and write what they can write by themselves; results come in
        #    order, are counted, and this process writes what only one may write (an LMDB, a label file).
        tally = Tally()
        with closing(_run(plan, chunks, executor)) as results:
            _write(plan, _counted(results, tally, staging.rejected, len(source), progress), tally)
        # 3. Without one sample there is no set; only the rejected ones and the reasons are published.
        if tally.samples == 0:
            staging.publish_rejected()
            where = staging.rejected_destination
            raise DataError(f"not one of {len(source)} samples could be converted ({tally.first_reject}): see {where}")
        # 4. The manifest, then everything appears at once.
        tally.write(staging.out, source, kind)
        staging.commit()
        rejected = staging.rejected_destination if tally.rejected else None
        counts = (tally.samples, tally.empty_labels, dict(tally.rejected), rejected, tally.image_bytes)
        return ConvertReport(staging.destination, kind, *counts, source.notes)


def _plan(source: Source, kind: str, staging: Staging) -> ConvertPlan:
    labels = None if kind in _STORES else FORMATS.get(kind)()
    # A set whose keys begin with `images/` already must not get its images in `images/images/`.
    folder = f"{labels.image_folder}/" if labels and labels.image_folder else ""
    inside = folder and all(source.key(index).startswith(folder) for index in range(len(source)))
    strip = folder if inside else ""
    twice = _taken(source, labels, strip) if labels else frozenset[int]()
    return ConvertPlan(source, kind, staging.destination, staging.work, labels, strip, twice)


def _taken(source: Source, labels: LabelFormat, strip: str) -> frozenset[int]:
    """Return the samples that would take an earlier one's place; found beforehand, so that workers cannot race."""
    nothing = Text("")
    keys = (source.key(index).removeprefix(strip) for index in range(len(source)))
    places = (labels.place(key, nothing, index, ".png") for index, key in enumerate(keys))
    return frozenset(repeats(PackedStrings(labels.label_of(place) or place for place in places)))


def _chunks(source: Source, kind: str, shard_size: int, seed: int) -> Iterator[Chunk]:
    """Shards are filled in a random order, so that reading them one after the other is already a shuffle."""
    size = shard_size if kind == "shards" else _CHUNK
    order = np.arange(len(source), dtype=np.int64)
    if kind == "shards":
        np.random.default_rng(seed).shuffle(order)
    for number, start in enumerate(range(0, len(order), size)):
        yield Chunk(number, order[start : start + size])


def _run(plan: ConvertPlan, chunks: Iterable[Chunk], executor: Executor) -> Generator[ChunkResult, None, None]:
    """Yield the results of the chunks in their order; raises OutputError, and DataError when a worker died."""
    try:
        yield from executor.map(convert_chunk, plan, chunks)
    except WorkerDiedError as error:
        raise DataError("a worker process of the conversion died (out of memory?): try fewer workers") from error


def _workers(workers: int | None, samples: int) -> int:
    if workers is not None:
        return workers
    return 0 if samples < _WORTH_WORKERS else min(os.cpu_count() or 1, _MOST_WORKERS)


def _counted(
    results: Iterable[ChunkResult], tally: Tally, rejected: Path, total: int, progress: Progress | None
) -> Iterator[ChunkResult]:
    """Pass results on; count them, record what was left out, and report progress."""
    finished = 0
    for chunk in results:
        tally.add_rejects(chunk, rejected)
        tally.add(chunk)
        yield chunk
        finished += chunk.total
        if progress:
            progress(finished, total)


def _write(plan: ConvertPlan, results: Iterator[ChunkResult], tally: Tally) -> None:
    if plan.format is not None:
        _write_labels(plan.format, plan.work / "out", results)
    elif plan.kind == "lmdb":
        _write_lmdb(plan.work / "out", results)
    else:
        _place_shards(plan.work / "out", results, tally)


def _write_labels(labels: LabelFormat, folder: Path, results: Iterator[ChunkResult]) -> None:
    # A generator all through: results are written as they come, and no list of all labels is made.
    numbered = (pair for chunk in results for pair in zip(chunk.places, chunk.targets, strict=True))
    entries = (Entry(labels.named(place), target, line) for line, (place, target) in enumerate(numbered, 1))
    labels.write(folder if labels.of_folder else folder / labels.file_name, entries)


def _write_lmdb(folder: Path, results: Iterator[ChunkResult]) -> None:
    with LmdbWriter(folder) as writer:
        for chunk in results:
            if chunk.product is None:
                raise RuntimeError("a chunk for an LMDB has no spool file")
            with writing(folder), chunk.product.open("rb") as spool:
                for size, target in zip(chunk.sizes, chunk.targets, strict=True):
                    writer.add(spool.read(size), label_text(target))
                chunk.product.unlink()  # at once, or the scratch folder would hold all images twice
        writer.finish()


def _place_shards(folder: Path, results: Iterator[ChunkResult], tally: Tally) -> None:
    """Number shards without gaps, also when every sample of one was damaged: patterns such as {000..146} have none."""
    for chunk in results:
        if chunk.product is None or not chunk.sizes:
            continue
        shard = folder / f"shard-{len(tally.shards):06d}.tar"
        with writing(shard):
            index_path(chunk.product).replace(index_path(shard))
            chunk.product.replace(shard)
            tally.shards.append({"file": shard.name, "samples": len(chunk.sizes), "bytes": shard.stat().st_size})


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion.

    Attributes:
        destination: where the data are.
        kind: lmdb, shards, or the name of a label format.
        samples: how many were written.
        empty_labels: how many of them have an empty label.
        rejected: how many were left out, by reason.
        rejected_folder: where copies of those and rejects.tsv are; None when nothing was left out.
        image_bytes: total size of the images written.
        notes: the source's notes, see `Source`.
    """

    destination: Path
    kind: str
    samples: int
    empty_labels: int
    rejected: dict[str, int]
    rejected_folder: Path | None
    image_bytes: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it in a line or two."""
        size = f"{self.image_bytes / 2**20:.1f} MiB of images"
        text = f"{self.samples:,} samples ({size}) as {self.kind} in {self.destination}"
        if self.empty_labels:
            text += f", {self.empty_labels:,} of them with an empty label"
        if self.rejected_folder:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.rejected.items()))
            text += f"\n{sum(self.rejected.values()):,} left out: {reasons}; see {self.rejected_folder / REJECTS}"
        return text


@dataclass
class Tally:
    """Running totals over chunks; its memory does not grow with the number of samples."""

    samples: int = 0
    empty_labels: int = 0
    multilabel: bool = False
    image_bytes: int = 0
    checksum: int = 0
    characters: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    first_reject: str = ""
    shards: list[dict[str, Any]] = field(default_factory=list)
    _ranges: dict[str, list[float]] = field(default_factory=dict)

    def add(self, chunk: ChunkResult) -> None:
        """Add a chunk that was written."""
        self.samples += len(chunk.sizes)
        self.image_bytes += sum(chunk.sizes)
        # Chunks come in order, so a checksum of the images' checksums is the same with any number of workers.
        self.checksum = zlib.crc32(np.array(chunk.checksums, "<u4").tobytes(), self.checksum)
        self.characters.update(chunk.characters)
        self.multilabel |= any(isinstance(target, Labels) for target in chunk.targets)
        lengths = [
            len(t.value if isinstance(t, Text) else t.names) for t in chunk.targets if isinstance(t, Text | Labels)
        ]
        self.empty_labels += lengths.count(0)
        self._range("label_length", lengths)
        self._range("width", [width for width, _ in chunk.shapes])
        self._range("height", [height for _, height in chunk.shapes])
        self._range("image_bytes", chunk.sizes)

    def add_rejects(self, chunk: ChunkResult, folder: Path) -> None:
        """Append a chunk's rejects to rejects.tsv: key, reason, name of the copy."""
        if not chunk.rejects:
            return
        self.rejected.update(reject.category for reject in chunk.rejects)
        self.first_reject = self.first_reject or chunk.rejects[0].reason
        append_rejects(folder, ((reject.key, reject.reason, reject.copy) for reject in chunk.rejects))

    def write(self, folder: Path, source: Source, kind: str) -> None:
        """Write manifest.json and characters.txt; raises OutputError."""
        counts = dict(sorted(self.characters.items()))
        texts = {"classes": counts} if self.multilabel else {"characters": counts}
        manifest = {
            "format": "inkmill data set",
            "version": 1,
            "made_by": f"inkmill {__version__}",
            "kind": kind,
            "samples": self.samples,
            "empty_labels": self.empty_labels,
            "rejected": dict(self.rejected),
            "source": {"name": source.name, "samples": len(source), "fingerprint": source.fingerprint},
            "fingerprint": fingerprint("data set", f"{self.samples} {self.image_bytes} {self.checksum}", repr(counts)),
            "total_image_bytes": self.image_bytes,
            # Over the CRC-32 of every image, 4 bytes little-endian each, in order.
            "crc32": f"{self.checksum:08x}",
            "ranges": {name: _summary(values, self.samples) for name, values in self._ranges.items()},
            **({"shards": self.shards} if self.shards else {}),
            **texts,
        }
        # A character list, as `dataset.character_list_file` reads it: one a line, in order of their code points. It
        # has no control characters; labels that hold some keep them.
        listed = [char for char in counts if unicodedata.category(char[:1]) not in ("Cc", "Cs")]
        if listed and not self.multilabel:
            write_text_atomic(folder / "characters.txt", "".join(f"{char}\n" for char in listed))
        manifest["files"] = count_files(folder) + 1
        write_json_atomic(folder / MANIFEST, manifest)  # last: any newer file is not the conversion's

    def _range(self, name: str, values: list[int]) -> None:
        if values:
            low, high, total = self._ranges.get(name, [values[0], values[0], 0])
            self._ranges[name] = [min(low, *values), max(high, *values), total + sum(values)]


def _summary(values: list[float], count: int) -> dict[str, float]:
    return {"min": values[0], "max": values[1], "mean": round(values[2] / max(count, 1), 2)}
