"""WebDataset tar shards as an array: each sample is read where it lies; nothing is unpacked or read in order."""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.formats.base import IMAGE_SUFFIXES
from inkmill.data.sources.base import MAX_IMAGE_BYTES, Source, check_image_bytes
from inkmill.data.sources.packed import PackedBuilder, PackedStrings, fingerprint
from inkmill.data.sources.shard_index import Member, read_members, split_name
from inkmill.data.types import Labels, Sample, Target, Text
from inkmill.errors import DataError
from inkmill.files import explain

_IMAGE_EXTENSIONS = frozenset(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES)
_LABEL_EXTENSIONS = ("txt", "json", "cls")
_MAX_LABEL_BYTES = 1 << 20
_OPEN_SHARDS = 32
_BETWEEN = 4096  # bytes: image and label no further apart, as side by side they are, are read at once


class ShardSource(Source):
    """Tar shards, each with its index beside it or scanned once.

    A sample is an image (any of inkmill's kinds) and a label: `.txt` (UTF-8 text), `.json` ({"text": ...}, or
    {"labels": [...]} for class names) or `.cls` (a class name). Its key is the shard's stem and the member's key.

    Args:
        shards: the tar files, in order.
        name: short name for tables.

    Raises:
        DataError: a shard that cannot be read, or no complete sample in any.
    """

    def __init__(self, shards: Sequence[Path], name: str) -> None:
        super().__init__(name)
        self.shards = list(shards)
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._lock = threading.Lock()
        self._keys, self._table, scanned, left_out = _index(self.shards)
        self.notes = _notes(len(self._keys), self.shards, scanned, left_out)
        if not len(self._keys):
            raise DataError(
                f"{name}: no sample with an image and a label ({', '.join(_LABEL_EXTENSIONS)}) in the shards"
            )

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, index: int) -> Sample:
        """See `Source.get`; a label beside its image comes with it."""
        index = self._checked(index)
        shard, offset, size, label_offset, label_size, kind = self._table[index].tolist()
        first, end = min(offset, label_offset), max(offset + size, label_offset + label_size)
        if size > MAX_IMAGE_BYTES or label_size > _MAX_LABEL_BYTES or end - first > size + label_size + _BETWEEN:
            return super().get(index)
        data = self._read(shard, first, end - first, index)
        label = data[label_offset - first : label_offset - first + label_size]
        key = self._keys[index]
        return Sample(key, data[offset - first : offset - first + size], _target(_LABEL_EXTENSIONS[kind], label, key))

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        index = self._checked(index)
        shard, offset, size, *_ = self._table[index].tolist()
        check_image_bytes(size, self.key(index))
        return self._read(shard, offset, size, index)

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self._keys[self._checked(index)]

    def target(self, index: int) -> Target:
        """See `Source.target`."""
        index = self._checked(index)
        shard, _, _, offset, size, kind = self._table[index].tolist()
        if size > _MAX_LABEL_BYTES:
            raise DataError(f"{self.key(index)}: a label of {size:,} bytes is no label")
        return _target(_LABEL_EXTENSIONS[kind], self._read(shard, offset, size, index), self.key(index))

    def files(self, index: Sequence[int]) -> list[Path]:
        """See `Source.files`."""
        return [self.shards[number] for number in np.unique(self._table[np.asarray(index, np.int64), 0]).tolist()]

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the images lie, int64 (N, 3): number of the shard, offset and size in bytes."""
        return self._table[:, :3]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _read(self, shard: int, offset: int, size: int, index: int) -> bytes:
        try:
            data = self._opened(shard).read(offset, size)
        except OSError as error:
            raise DataError(f"{self.key(index)}: {self.shards[shard]} cannot be read: {explain(error)}") from error
        if len(data) != size:
            raise DataError(f"{self.key(index)}: {self.shards[shard]} is shorter than when it was opened")
        return data

    def _opened(self, shard: int) -> _OpenShard:
        """Return an open shard; when there are many, the longest unused one is let go."""
        with self._lock:
            if shard not in self._open:
                if len(self._open) >= _OPEN_SHARDS:
                    self._open.popitem(last=False)
                self._open[shard] = _OpenShard(self.shards[shard])
            self._open.move_to_end(shard)
            return self._open[shard]

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        stats = [shard.stat() for shard in self.shards]
        times = np.array([(status.st_size, status.st_mtime_ns) for status in stats], np.int64)
        return fingerprint("shards", self._keys, self._table, times)

    @cached_property
    def identity(self) -> str:
        """See `Source.identity`."""
        return fingerprint("shards", self._keys, self._table)


class _OpenShard:
    """A file that threads and forked processes can read at the same time, closed when the last user lets it go."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def read(self, offset: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, size)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _index(shards: list[Path]) -> tuple[PackedStrings, NDArray[np.int64], int, Counter[str]]:
    """Return keys; int64 (N, 6): shard, image offset, size, label offset, size, kind; shards scanned; losses."""
    keys, table = PackedBuilder(), array("q")
    scanned, left_out = 0, Counter[str]()
    names = _names(shards)
    for number, shard in enumerate(shards):
        samples, indexed = read_members(shard)
        scanned += not indexed
        for members in samples:
            parts = _parts(members)
            if isinstance(parts, str):
                left_out[parts] += 1
                continue
            keys.append(f"{names[number]}/{split_name(members[0].name)[0]}")
            table.extend((number, *parts))
    return keys.packed(), np.frombuffer(table, np.int64).reshape(-1, 6), scanned, left_out


def _names(shards: list[Path]) -> list[str]:
    """Return what keys of each shard begin with: its name, with that of its folder where two have the same."""
    stems = [shard.stem for shard in shards]
    if len(set(stems)) == len(stems):
        return stems
    longer = [f"{shard.parent.name}/{shard.stem}" for shard in shards]
    return longer if len(set(longer)) == len(longer) else [f"{n:06d}-{stem}" for n, stem in enumerate(stems)]


def _parts(members: tuple[Member, ...]) -> tuple[int, int, int, int, int] | str:
    """Return offset and size of the image, offset, size and kind of the label; or what is wrong with the sample."""
    images = [member for member in members if member.extension.rpartition(".")[2] in _IMAGE_EXTENSIONS]
    if len(images) != 1:
        return "without an image" if not images else "with several images"
    for kind, extension in enumerate(_LABEL_EXTENSIONS):
        label = next((member for member in members if member.extension == extension), None)
        if label:
            return images[0].offset, images[0].size, label.offset, label.size, kind
    return "without a label"


def _notes(count: int, shards: list[Path], scanned: int, left_out: Counter[str]) -> tuple[str, ...]:
    notes = [f"{count} samples in {len(shards)} tar shards"]
    if scanned:
        notes.append(f"{scanned} shards have no index that fits, so they were scanned; `inkmill convert` writes one")
    return (*notes, *(f"{number} samples {reason} left out" for reason, number in left_out.items()))


def _target(kind: str, data: bytes, key: str) -> Target:
    try:
        text = data.decode("utf-8")
        value = json.loads(text) if kind == "json" else text.removesuffix("\n").removesuffix("\r")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{key}: the label is not UTF-8 {kind} ({error})") from None
    if kind == "cls":
        return Labels((value.strip(),))
    if kind == "txt":
        return Text(value)
    fields = value if isinstance(value, dict) else {}
    names, words = fields.get("labels"), fields.get("text", fields.get("label"))
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return Labels(tuple(names))
    if isinstance(words, str):
        return Text(words)
    raise DataError(f'{key}: expected {{"text": ...}} or {{"labels": [...]}} in its json')
