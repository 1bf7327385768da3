"""Any data set becomes an LMDB, tar shards, or a label file with images: TAO's dataset_convert, and the way back.

The images' bytes are kept as they are. Every image is decoded once, so that what was converted can be read; what
cannot is copied to DESTINATION.rejected with the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np

from inkmill.data.formats import FORMATS, Entry, LabelFormat
from inkmill.data.jobs.convert_manifest import ConvertReport, Tally
from inkmill.data.jobs.convert_sinks import Plan, label_text
from inkmill.data.jobs.convert_staging import Staging
from inkmill.data.jobs.convert_worker import Chunk, Done, run
from inkmill.data.sources.base import Source
from inkmill.data.sources.lmdb import LmdbWriter
from inkmill.data.sources.packed import PackedStrings, repeats
from inkmill.data.sources.shards import index_path
from inkmill.data.types import Text
from inkmill.errors import ConfigError, DataError
from inkmill.files import writing
from inkmill.registry import suggest

Progress = Callable[[int, int], None]
Kind = Literal["lmdb", "shards"] | str

_STORES = ("lmdb", "shards")
_CHUNK = 256
_WORTH_WORKERS = 5000
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

    The destination appears when all is done, whole; a run that is killed leaves what was there, or nothing. Memory
    does not grow with the number of samples.

    Args:
        source: what to convert (see `sources.open_source`).
        destination: folder to make.
        kind: `lmdb` (TAO's and CLOVA's keys), `shards` (WebDataset tars with an index for DALI), or the name of a
            label format, whose file is written beside the images.
        workers: processes that read and decode; by default one a core for large sets, none for small ones.
        overwrite: replace a converted set that is there.
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
        plan = _plan(source, kind, staging)
        tally = Tally()
        chunks = _chunks(source, kind, shard_size, seed)
        with closing(run(plan, chunks, _workers(workers, len(source)))) as results:
            _write(plan, _watched(results, tally, staging.rejected, len(source), progress), tally)
        if tally.samples == 0:
            staging.publish_rejected()
            where = staging.rejected_destination
            raise DataError(f"not one of {len(source)} samples could be converted ({tally.first_reject}): see {where}")
        tally.write(staging.out, source, kind)
        staging.commit()
        rejected = staging.rejected_destination if tally.rejected else None
        counts = (tally.samples, tally.empty_labels, dict(tally.rejected), rejected, tally.image_bytes)
        return ConvertReport(staging.destination, kind, *counts, source.notes)


def _plan(source: Source, kind: str, staging: Staging) -> Plan:
    labels = None if kind in _STORES else FORMATS.get(kind)()
    folder = f"{labels.image_folder}/" if labels and labels.image_folder else ""
    inside = folder and all(source.key(index).startswith(folder) for index in range(len(source)))
    strip = folder if inside else ""
    twice = _taken(source, labels, strip) if labels else frozenset[int]()
    return Plan(source, kind, staging.destination, staging.work, labels, strip, twice)


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


def _workers(workers: int | None, samples: int) -> int:
    if workers is not None:
        return workers
    return 0 if samples < _WORTH_WORKERS else min(os.cpu_count() or 1, _MOST_WORKERS)


def _watched(
    results: Iterable[Done], tally: Tally, rejected: Path, total: int, progress: Progress | None
) -> Iterator[Done]:
    """Pass results on, counted, with what was left out recorded."""
    finished = 0
    for done in results:
        tally.add_rejects(done, rejected)
        tally.add(done)
        yield done
        finished += done.total
        if progress:
            progress(finished, total)


def _write(plan: Plan, results: Iterator[Done], tally: Tally) -> None:
    if plan.format is not None:
        _write_labels(plan.format, plan.work / "out", results)
    elif plan.kind == "lmdb":
        _write_lmdb(plan.work / "out", results)
    else:
        _place_shards(plan.work / "out", results, tally)


def _write_labels(labels: LabelFormat, folder: Path, results: Iterator[Done]) -> None:
    numbered = (pair for done in results for pair in zip(done.places, done.targets, strict=True))
    entries = (Entry(labels.named(place), target, line) for line, (place, target) in enumerate(numbered, 1))
    labels.write(folder if labels.of_folder else folder / labels.file_name, entries)


def _write_lmdb(folder: Path, results: Iterator[Done]) -> None:
    with LmdbWriter(folder) as writer:
        for done in results:
            if done.product is None:
                raise RuntimeError("a chunk for an LMDB has no spool file")
            with writing(folder), done.product.open("rb") as spool:
                for size, target in zip(done.sizes, done.targets, strict=True):
                    writer.add(spool.read(size), label_text(target))
                done.product.unlink()
        writer.finish()


def _place_shards(folder: Path, results: Iterator[Done], tally: Tally) -> None:
    """Number shards without gaps, also when every sample of one was damaged: patterns such as {000..146} have none."""
    for done in results:
        if done.product is None or not done.sizes:
            continue
        shard = folder / f"shard-{len(tally.shards):06d}.tar"
        with writing(shard):
            index_path(done.product).replace(index_path(shard))
            done.product.replace(shard)
            tally.shards.append({"file": shard.name, "samples": len(done.sizes), "bytes": shard.stat().st_size})
