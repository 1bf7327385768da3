"""The part of a conversion that runs in parallel: a chunk of samples is read, decoded once, and written.

A worker writes what it can write by itself (a whole tar shard, image files) and else a spool file for the one process
that may write an LMDB. What it returns is small: numbers, labels and reasons, never images.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.convert_sinks import Plan, Sink, make_sink
from inkmill.data.jobs.rejects import copy_suffix
from inkmill.data.pipeline.decode import decode
from inkmill.data.types import Labels, Target, Text
from inkmill.errors import DataError, ImageError
from inkmill.files import make_folder, writing
from inkmill.processes import in_order
from inkmill.tasks.recognition.normalise import nfc


class Chunk(NamedTuple):
    """A piece of work: its number and the int64 indices of its samples, in the order to write them."""

    number: int
    indices: NDArray[np.int64]


class Reject(NamedTuple):
    """One sample left out: its key, a category to count by, the reason in full, its copy among the rejected."""

    key: str
    category: str
    reason: str
    copy: str


@dataclass(slots=True)
class Done:
    """What became of a chunk.

    Attributes:
        number: the chunk's.
        total: samples it was given.
        product: the file it wrote; None when the images are files of their own.
        sizes: bytes of each image written.
        checksums: CRC-32 of each image written.
        shapes: (width, height) of each image written.
        places: where each image went; empty unless images are files of their own.
        targets: the targets of the images written.
        rejects: what was left out, and why.
        characters: how often each character occurs in the texts, in NFC.
    """

    number: int
    total: int
    product: Path | None = None
    sizes: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    shapes: list[tuple[int, int]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    characters: Counter[str] = field(default_factory=Counter)


def run(plan: Plan, chunks: Iterable[Chunk], workers: int) -> Generator[Done, None, None]:
    """Yield the results of the chunks in their order.

    Args:
        plan: what to do with each.
        chunks: the work; drawn as workers become free, so that few results wait at any time.
        workers: processes (started by spawn, so the same everywhere); 0 works in this one.

    Raises:
        OutputError: a worker cannot write.
        DataError: a worker died.
    """
    if workers == 0:
        yield from (convert_chunk(plan, chunk) for chunk in chunks)
        return
    try:
        yield from in_order(_convert_chunk, ((chunk,) for chunk in chunks), workers, _begin, plan)
    except BrokenProcessPool as error:
        raise DataError("a worker process of the conversion died (out of memory?): try fewer workers") from error


def convert_chunk(plan: Plan, chunk: Chunk) -> Done:
    """Convert one chunk; raises OutputError."""
    done = Done(chunk.number, len(chunk.indices))
    with writing(plan.destination), make_sink(plan, chunk.number) as sink:
        for index in chunk.indices.tolist():
            _convert_sample(plan, index, sink, done)
        done.product = sink.product
    return done


def _convert_sample(plan: Plan, index: int, sink: Sink, done: Done) -> None:
    key = plan.source.key(index)
    try:
        image, target = plan.source.image(index), plan.source.target(index)
    except DataError as error:
        done.rejects.append(Reject(key, "missing or not readable", str(error), ""))
        return
    try:
        height, width = decode(image, 3).shape[:2]
    except ImageError as error:
        done.rejects.append(_reject(plan, index, key, image, "damaged image", str(error)))
        return
    refusal = sink.refuses(key, target)
    if refusal:
        done.rejects.append(_reject(plan, index, key, image, "label cannot be stored", refusal))
        return
    place = sink.add(index, key, image, target)
    if place:
        done.places.append(place)
    done.sizes.append(len(image))
    done.checksums.append(zlib.crc32(image))
    done.shapes.append((width, height))
    done.targets.append(target)
    if isinstance(target, Text):
        done.characters.update(nfc(target.value))
    elif isinstance(target, Labels):
        done.characters.update(target.names)


def _reject(plan: Plan, index: int, key: str, image: bytes, category: str, reason: str) -> Reject:
    """Keep a copy of a bad sample, numbered: its own name may be what is wrong with it."""
    copy = f"{index:09d}{copy_suffix(key, image)}"
    (make_folder(plan.work / "rejected") / copy).write_bytes(image)
    return Reject(key, category, reason, copy)


_plan: Plan | None = None


def _begin(plan: Plan) -> None:
    global _plan
    _plan = plan


def _convert_chunk(chunk: Chunk) -> Done:
    if _plan is None:
        raise RuntimeError("the worker was not set up")
    return convert_chunk(_plan, chunk)
