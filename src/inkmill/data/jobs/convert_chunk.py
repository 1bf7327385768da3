"""The part of a conversion that runs in parallel: a chunk of samples is read, decoded once, and written.

A worker writes what it can write by itself (a whole tar shard, or image files), and else a spool file for the one
process that may write an LMDB. What it returns is small: numbers, labels and reasons, never images.
"""

from __future__ import annotations

import io
import json
import tarfile
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.data.formats.base import LabelFormat, unwritable
from inkmill.data.jobs.rejects import copy_suffix, suffix_of
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources.base import Source
from inkmill.data.sources.shards import Member, index_path, write_index
from inkmill.data.types import Labels, Sample, Target, Text
from inkmill.errors import DataError, ImageError
from inkmill.files import make_folder, writing


@dataclass(frozen=True)
class ConvertPlan:
    """What a conversion does with every sample.

    Attributes:
        source: where samples come from.
        kind: lmdb, shards, or the name of a label format.
        destination: the place the user asked for, for messages.
        work: the scratch folder; its `out` becomes the destination, its `rejected` holds what is left out.
        format: the label format; None for lmdb and shards.
        strip: prefix of all keys that is left out of the images' names, such as `images/`.
        twice: the samples whose name, or whose label file's, an earlier sample has taken.
    """

    source: Source
    kind: str
    destination: Path
    work: Path
    format: LabelFormat | None = None
    strip: str = ""
    twice: frozenset[int] = frozenset()


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
class ChunkResult:
    """What was written of a chunk, and what was left out.

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


def convert_chunk(plan: ConvertPlan, chunk: Chunk) -> ChunkResult:
    """Convert one chunk; raises OutputError."""
    result = ChunkResult(chunk.number, len(chunk.indices))
    # What a worker cannot write is an error about the destination: the scratch folder means nothing to a user.
    with writing(plan.destination), closing(make_sink(plan, chunk.number)) as sink:
        indices = chunk.indices.tolist()
        with plan.source.reading(indices if plan.source.together else ()) as get:
            for index in indices:
                _convert_sample(plan, get, index, sink, result)
        result.product = sink.product
    return result


def _convert_sample(
    plan: ConvertPlan, get: Callable[[int], Sample], index: int, sink: Sink, result: ChunkResult
) -> None:
    key = plan.source.key(index)
    # 1. Read image and label.
    try:
        sample = get(index)
        image, target = sample.image, sample.target
    except DataError as error:
        result.rejects.append(Reject(key, "missing or not readable", str(error), ""))
        return
    # 2. Decode the image, only to know that it can be: its bytes are kept as they are.
    try:
        height, width = decode(image, 3).shape[:2]
    except ImageError as error:
        result.rejects.append(_reject(plan, index, key, image, "damaged image", str(error)))
        return
    # 3. Test whether the destination can hold the label.
    refusal = sink.refuses(key, target)
    if refusal:
        result.rejects.append(_reject(plan, index, key, image, "label cannot be stored", refusal))
        return
    # 4. Store the sample, and note what the manifest needs.
    place = sink.add(index, key, image, target)
    if place:
        result.places.append(place)
    result.sizes.append(len(image))
    result.checksums.append(zlib.crc32(image))
    result.shapes.append((width, height))
    result.targets.append(target)
    if isinstance(target, Text):
        result.characters.update(unicodedata.normalize("NFC", target.value))
    elif isinstance(target, Labels):
        result.characters.update(target.names)


def _reject(plan: ConvertPlan, index: int, key: str, image: bytes, category: str, reason: str) -> Reject:
    """Copy a bad sample under a number, since its own name may be the fault."""
    copy = f"{index:09d}{copy_suffix(key, image)}"
    (make_folder(plan.work / "rejected") / copy).write_bytes(image)
    return Reject(key, category, reason, copy)


def make_sink(plan: ConvertPlan, number: int) -> Sink:
    """Return the sink for chunk `number`."""
    if plan.format is not None:
        return _Files(plan, plan.format)
    return _Shard(plan, number) if plan.kind == "shards" else _Spool(plan, number)


def label_text(target: Target) -> str:
    """Return a target as one text, for places that hold no more: class names are joined by spaces."""
    return " ".join(target.names) if isinstance(target, Labels) else target.value if isinstance(target, Text) else ""


class Sink(ABC):
    """Where the samples of one chunk go; it has to be closed.

    Attributes:
        product: the file that is written; None when images are files of their own.
    """

    product: Path | None = None

    @abstractmethod
    def refuses(self, key: str, target: Target) -> str | None:
        """Return the reason why a target cannot be stored, or None."""

    @abstractmethod
    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        """Store one sample; return where its image went when it is a file of its own, else an empty string."""

    def close(self) -> None:  # noqa: B027 - image files are closed one by one
        """Finish the product."""


class _Spool(Sink):
    """All images of the chunk one after the other in one file, for the process that writes the LMDB."""

    def __init__(self, plan: ConvertPlan, number: int) -> None:
        self.product = plan.work / f"chunk-{number:09d}.spool"
        self._file = self.product.open("wb")

    def refuses(self, key: str, target: Target) -> str | None:
        if isinstance(target, Labels) and target.unknown:
            return "an LMDB has no place for unknown classes: use shards or csv_one_hot"
        if isinstance(target, Labels):
            return next((unwritable(name, " \t", "class name") for name in target.names if " " in name), None)
        return _no_text(target)

    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        self._file.write(image)
        return ""

    def close(self) -> None:
        self._file.close()


class _Shard(Sink):
    """A tar of `000000123.png` + `000000123.txt` (texts) or `.json` (class names), and its index beside it.

    The number is the sample's position in the source. USTAR, no times, no owners: equal data give equal bytes.
    """

    def __init__(self, plan: ConvertPlan, number: int) -> None:
        self.product = plan.work / f"chunk-{number:09d}.tar"
        self._index = index_path(self.product)
        self._tar = tarfile.open(self.product, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 - closed in close
        self._members: list[tuple[Member, ...]] = []

    def refuses(self, key: str, target: Target) -> str | None:
        return None if isinstance(target, Labels) else _no_text(target)

    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        extension = "json" if isinstance(target, Labels) else "txt"
        label = label_text(target)
        if isinstance(target, Labels):
            label = json.dumps({"labels": target.names} | ({"unknown": target.unknown} if target.unknown else {}))
        parts = ((suffix_of(image).removeprefix("."), image), (extension, label.encode("utf-8")))
        self._members.append(tuple(self._add(f"{index:09d}", part, data) for part, data in parts))
        return ""

    def close(self) -> None:
        self._tar.close()  # writes the end of the tar, after which the index is true
        write_index(self._index, self._members, len(self._members))

    def _add(self, key: str, extension: str, data: bytes) -> Member:
        header = tarfile.TarInfo(f"{key}.{extension}")
        header.size = len(data)
        offset = self._tar.offset + tarfile.BLOCKSIZE  # after the member's header, which is one block
        self._tar.addfile(header, io.BytesIO(data))
        return Member(extension, offset, len(data), header.name)


class _Files(Sink):
    """Every image a file of its own, named as the label format wants it."""

    def __init__(self, plan: ConvertPlan, labels: LabelFormat) -> None:
        self._plan = plan
        self._labels = labels
        self._folders: set[Path] = set()  # made already

    def refuses(self, key: str, target: Target) -> str | None:
        # The index and the suffix do not matter to what a format can hold; the image need not be parsed again for it.
        place = self._labels.place(self._short(key), target, 0, ".png")
        return self._labels.refuses(self._labels.named(place), target)

    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        # The suffix comes from the contents: a name may lie about its format.
        suffix = suffix_of(image)
        elsewhere = self._labels.place(f"twice/{index:09d}", target, index, suffix)
        place = elsewhere if index in self._plan.twice else self._labels.place(self._short(key), target, index, suffix)
        try:
            self._write(place, image)
        except FileExistsError:  # two keys without a suffix may differ in nothing else
            place = elsewhere
            self._write(place, image)
        return place

    def _write(self, place: str, image: bytes) -> None:
        path = self._plan.work / "out" / place
        if path.parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(path.parent)
        if label := self._labels.label_of(place):  # first, so that no image is ever without its label file
            (self._plan.work / "out" / label).open("xb").close()
        with path.open("xb") as file:
            file.write(image)

    def _short(self, key: str) -> str:
        return key.removeprefix(self._plan.strip)


def _no_text(target: Target) -> str | None:
    if not isinstance(target, Text):
        return "only texts and class names can be converted"
    return unwritable(target.value, "", "label")
