"""Where a worker puts the samples of its chunk: a tar shard, a spool file, or image files."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from inkmill.data.formats.base import LabelFormat, unwritable
from inkmill.data.jobs.rejects import suffix_of
from inkmill.data.sources.base import Source
from inkmill.data.sources.shards import Member, index_path, write_index
from inkmill.data.types import Labels, Target, Text


@dataclass(frozen=True)
class Plan:
    """What a conversion does with every sample.

    Attributes:
        source: where samples come from.
        kind: lmdb, shards, or the name of a label format.
        destination: the place the user asked for, for messages.
        work: the scratch folder; its `out` becomes the destination, its `rejected` holds what is left out.
        format: the label format; None for lmdb and shards.
        strip: what all keys begin with and images in the destination need not, such as `images/`.
        twice: the samples whose name, or whose label file's, an earlier sample has.
    """

    source: Source
    kind: str
    destination: Path
    work: Path
    format: LabelFormat | None = None
    strip: str = ""
    twice: frozenset[int] = frozenset()


class Sink(Protocol):
    """Takes the samples of one chunk.

    Attributes:
        product: the file that is written; None when images are files of their own.
    """

    product: Path | None

    def refuses(self, key: str, target: Target) -> str | None:
        """Say why a target cannot be stored, or None."""
        ...

    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        """Store one sample; return where its image went when it is a file of its own, else an empty string."""
        ...

    def __enter__(self) -> Sink: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_sink(plan: Plan, number: int) -> Sink:
    """Return the sink for chunk `number`."""
    if plan.format is not None:
        return _Files(plan, plan.format)
    return _Shard(plan, number) if plan.kind == "shards" else _Spool(plan, number)


def label_text(target: Target) -> str:
    """Return what stands for a target where there is room for one text: class names are split by spaces."""
    return " ".join(target.names) if isinstance(target, Labels) else target.value if isinstance(target, Text) else ""


class _Spool:
    """All images of the chunk one after the other in one file, for the process that writes the LMDB."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.product: Path | None = plan.work / f"chunk-{number:09d}.spool"
        self._file = self.product.open("wb")

    def refuses(self, key: str, target: Target) -> str | None:
        if isinstance(target, Labels):
            return next((unwritable(name, " \t", "class name") for name in target.names if " " in name), None)
        return _no_text(target)

    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        self._file.write(image)
        return ""

    def __enter__(self) -> _Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class _Shard:
    """A tar of `000000123.png` + `000000123.txt` (texts) or `.json` (class names), and its index beside it.

    The number is the sample's position in the source. USTAR, no times, no owners: equal data give equal bytes.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        self.product: Path | None = plan.work / f"chunk-{number:09d}.tar"
        self._path = self.product
        self._tar = tarfile.open(self._path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 - closed in __exit__
        self._members: list[tuple[Member, ...]] = []

    def refuses(self, key: str, target: Target) -> str | None:
        return None if isinstance(target, Labels) else _no_text(target)

    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        extension = "json" if isinstance(target, Labels) else "txt"
        label = json.dumps({"labels": target.names}) if isinstance(target, Labels) else label_text(target)
        parts = ((suffix_of(image).removeprefix("."), image), (extension, label.encode("utf-8")))
        self._members.append(tuple(self._add(f"{index:09d}", part, data) for part, data in parts))
        return ""

    def __enter__(self) -> _Shard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tar.close()
        write_index(index_path(self._path), self._members, len(self._members))

    def _add(self, key: str, extension: str, data: bytes) -> Member:
        header = tarfile.TarInfo(f"{key}.{extension}")
        header.size = len(data)
        offset = self._tar.offset + tarfile.BLOCKSIZE
        self._tar.addfile(header, io.BytesIO(data))
        return Member(extension, offset, len(data), header.name)


class _Files:
    """Every image a file of its own, named as the label format wants it."""

    def __init__(self, plan: Plan, labels: LabelFormat) -> None:
        self.product: Path | None = None
        self._plan, self._labels = plan, labels
        self._made: set[Path] = set()

    def refuses(self, key: str, target: Target) -> str | None:
        place = self._labels.place(self._short(key), target, 0, ".png")
        return self._labels.refuses(self._labels.named(place), target)

    def add(self, index: int, key: str, image: bytes, target: Target) -> str:
        suffix = suffix_of(image)
        elsewhere = self._labels.place(f"twice/{index:09d}", target, index, suffix)
        place = elsewhere if index in self._plan.twice else self._labels.place(self._short(key), target, index, suffix)
        try:
            self._write(place, image)
        except FileExistsError:  # a key without a suffix, which only its picture gives it
            place = elsewhere
            self._write(place, image)
        return place

    def __enter__(self) -> _Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def _write(self, place: str, image: bytes) -> None:
        path = self._plan.work / "out" / place
        if path.parent not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(path.parent)
        if label := self._labels.label_of(place):  # first, so that no image is left without
            (self._plan.work / "out" / label).open("xb").close()
        with path.open("xb") as file:
            file.write(image)

    def _short(self, key: str) -> str:
        return key.removeprefix(self._plan.strip)


def _no_text(target: Target) -> str | None:
    if not isinstance(target, Text):
        return "only texts and class names can be converted"
    return unwritable(target.value, "", "label")
