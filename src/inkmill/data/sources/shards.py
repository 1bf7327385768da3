"""WebDataset tar shards as an array: each sample is read where it lies; nothing is unpacked or read in order.

What makes a shard an array is its index: the text file that DALI's `wds2idx` writes and `fn.readers.webdataset` reads,
version 1.2: a line `v1.2 N`, then a line a sample of `extension offset size name` for each of its members. A shard
without an index is scanned once. A WebDataset sample is a run of members with the same name up to the first dot of its
last part.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import tarfile
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from inkmill.data.formats.base import IMAGE_SUFFIXES
from inkmill.data.sources.base import MAX_IMAGE_BYTES, PackedStrings, Source, check_image_bytes, fingerprint
from inkmill.data.types import Labels, Sample, Target, Text
from inkmill.errors import DataError
from inkmill.files import UNPACK, check_regular, compression_of, explain, open_data, read_data, writing
from inkmill.registry import counted

_IMAGE_EXTENSIONS = frozenset(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES)
_LABEL_EXTENSIONS = ("txt", "json", "cls")
_MAX_LABEL_BYTES = 1 << 20
_MAX_SHARDS = 1_000_000
_OPEN_SHARDS = 32  # far below any limit of open files, and enough for the locality of a shuffled epoch
_MAX_GAP = 4096  # bytes between image and label up to which both are read at once: they mostly lie side by side
_INDEX_VERSION = "v1.2"
_TAR_BLOCK = 512
_MAX_PADDING = 1 << 20  # bytes after the end of a tar that are looked at: tar fills up 10 KiB
_MEND = "copy it again, or unpack what is left of it and pack that anew"


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
        # One read for both, unless they lie apart or one of them is too large, of which the other methods complain.
        first, end = min(offset, label_offset), max(offset + size, label_offset + label_size)
        if size > MAX_IMAGE_BYTES or label_size > _MAX_LABEL_BYTES or end - first > size + label_size + _MAX_GAP:
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
            raise DataError(f"{self.key(index)}: a label of {size:,} bytes is too large")
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
        """Return an open shard; beyond `_OPEN_SHARDS` the least recently used one is dropped."""
        # The lock guards the table only; reading itself is done by many threads at once.
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
        # Keys and offsets alone would not notice a shard that was written again with samples of the same sizes.
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
        # pread has no shared file position, so threads and forks need no lock. Windows has none.
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, size)

    def __del__(self) -> None:
        # Not closed when it leaves the cache: another thread may be reading from it.
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _index(shards: list[Path]) -> tuple[PackedStrings, NDArray[np.int64], int, Counter[str]]:
    """Read the index of every shard, or scan it.

    Returns:
        The keys; int64 (N, 6): shard, image offset, image size, label offset, label size, kind of label; the number of
        shards that had to be scanned; how many samples were left out, by reason.
    """
    keys = PackedStrings()
    table = array("q")
    scanned = 0
    left_out = Counter[str]()
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
    return keys, np.frombuffer(table, np.int64).reshape(-1, 6), scanned, left_out


def _names(shards: list[Path]) -> list[str]:
    """Return the prefix of each shard's keys: its name, with that of its folder where two have the same."""
    # Keys have to be unique in the source and the same on every machine, so no absolute path is a part of them.
    stems = [shard.stem for shard in shards]
    if len(set(stems)) == len(stems):
        return stems
    longer = [f"{shard.parent.name}/{shard.stem}" for shard in shards]
    return longer if len(set(longer)) == len(longer) else [f"{n:06d}-{stem}" for n, stem in enumerate(stems)]


def _parts(members: tuple[Member, ...]) -> tuple[int, int, int, int, int] | str:
    """Return (image offset, size, label offset, size, kind) of a sample, or the reason why it is left out."""
    images = [member for member in members if member.extension.rpartition(".")[2] in _IMAGE_EXTENSIONS]
    if len(images) != 1:
        return "without an image" if not images else "with several images"
    for kind, extension in enumerate(_LABEL_EXTENSIONS):
        label = next((member for member in members if member.extension == extension), None)
        if label:
            return images[0].offset, images[0].size, label.offset, label.size, kind
    return "without a label"


def _notes(count: int, shards: list[Path], scanned: int, left_out: Counter[str]) -> tuple[str, ...]:
    notes = [f"{counted(count, 'sample')} in {counted(len(shards), 'tar shard')}"]
    if scanned:
        were = f"{counted(scanned, 'shard')} {'was' if scanned == 1 else 'were'} scanned"
        notes.append(f"{were}, having no index that matches; `inkmill convert` writes one")
    return (*notes, *(f"{counted(number, 'sample')} {reason} left out" for reason, number in left_out.items()))


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
    unknown = fields.get("unknown", [])
    if _strings(names) and _strings(unknown):
        return Labels(tuple(names), tuple(unknown))
    if isinstance(words, str):
        return Text(words)
    raise DataError(f'{key}: expected {{"text": ...}} or {{"labels": [...]}} in its json')


def _strings(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


class Member(NamedTuple):
    """One file in a tar: its extension in lower case without the dot, where its bytes begin, how many, its name."""

    extension: str
    offset: int
    size: int
    name: str


def index_path(shard: Path) -> Path:
    """Return where the index of a shard lies: the same name with .idx."""
    return shard.with_suffix(".idx")


def write_index(path: Path, samples: Iterable[tuple[Member, ...]], count: int) -> None:
    """Write the index of `count` samples; names must not contain spaces. Raises OutputError."""
    with writing(path), path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{_INDEX_VERSION} {count}\n")
        for sample in samples:
            file.write(" ".join(f"{m.extension} {m.offset} {m.size} {m.name}" for m in sample) + "\n")


def read_members(shard: Path) -> tuple[list[tuple[Member, ...]], bool]:
    """Return the samples of a shard, and whether they came from its index file (else the tar was scanned).

    An index that does not match the tar (another size, other names at its first and last member) is ignored.

    Raises:
        DataError: no such file, not a tar, or a compressed one, in which nothing can be found without unpacking.
    """
    try:
        # An index is only trusted if it matches the tar: offsets of another tar would be images of noise.
        status = shard.stat()
        check_regular(status, shard)
        length = status.st_size
        indexed = _from_index(index_path(shard), length)
        if indexed and _names_match(shard, (indexed[0][0], indexed[-1][-1])):
            return indexed, True
        return list(_scan(shard, length)), False
    except OSError as error:
        raise DataError(f"the shard {shard} cannot be read: {explain(error)}") from error


def split_name(name: str) -> tuple[str, str]:
    """Split a member's name as WebDataset does: key up to the first dot of the last part, extension in lower case."""
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def _from_index(path: Path, length: int) -> list[tuple[Member, ...]]:
    """Return the samples of an index file; empty if there is none or it cannot be trusted."""
    try:
        # A member takes less of an index than of a tar, so a longer one is none, and need not be read.
        with io.TextIOWrapper(io.BytesIO(read_data(path, length)), encoding="utf-8") as file:
            version, count = file.readline().split()
            samples, expected = [_index_line(line) for line in file], int(count)
    except (OSError, ValueError):  # ValueError: not UTF-8, not numbers, a name with a blank in it
        return []
    inside = all(0 <= m.offset <= m.offset + m.size <= length for sample in samples for m in sample)
    return samples if version == _INDEX_VERSION and expected == len(samples) and inside else []


def _index_line(line: str) -> tuple[Member, ...]:
    words = line.split()
    if not words or len(words) % 4:
        raise ValueError("not groups of four")
    groups = (words[at : at + 4] for at in range(0, len(words), 4))
    return tuple(Member(extension.lower(), int(offset), int(size), name) for extension, offset, size, name in groups)


def _names_match(shard: Path, members: tuple[Member, Member]) -> bool:
    """Compare the name in a member's tar header (the block before its bytes, 100 bytes of it) with the index's."""
    with shard.open("rb") as file:
        for member in members:
            file.seek(max(member.offset - _TAR_BLOCK, 0))
            name = file.read(100).rstrip(b"\0")
            if not name or not member.name.encode("utf-8").endswith(name.removeprefix(b"./")):
                return False
    return True


def _scan(shard: Path, length: int) -> Iterator[tuple[Member, ...]]:
    for _, members in groupby(_tar_members(shard, length), key=lambda member: split_name(member.name)[0]):
        yield tuple(members)


def _tar_members(shard: Path, length: int) -> Iterator[Member]:
    seen = False
    try:
        with tarfile.open(shard, "r:") as tar:
            for info in tar:
                seen = True
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every header in memory
                if info.size < 0:  # the next header would lie before this one: an endless loop
                    raise DataError(f"the shard {shard} is damaged: {info.name} has {info.size} bytes")
                # Hidden files and WebDataset's own metadata (`__name__`) are no samples.
                last = info.name.rpartition("/")[2]
                if not info.isreg() or last.startswith(".") or (last.startswith("__") and last.endswith("__")):
                    continue
                if info.offset_data + info.size > length:
                    raise DataError(f"the shard {shard} is cut short: {info.name} ends after the file does; {_MEND}")
                yield Member(split_name(info.name)[1], info.offset_data, info.size, info.name)
            _check_end(shard, tar.offset, length)
    except (tarfile.TarError, ValueError) as error:  # ValueError: an extended header of negative size
        with open_data(shard) as file:
            packed = compression_of(file.read(8))
        if packed:
            raise DataError(
                f"{shard} is compressed with {packed}, and only a plain tar has places to read at: {UNPACK[packed]}"
            ) from error
        # What has a member is a tar, and so is what ends within its first header.
        if seen or 0 < length < _TAR_BLOCK or "unexpected end" in str(error):
            raise DataError(f"the shard {shard} is cut short or damaged ({error}): {_MEND}") from error
        raise DataError(f"{shard} is not a tar file ({error}): expected a tar of images and labels") from error


def _check_end(shard: Path, end: int, length: int) -> None:
    """Raise DataError unless the tar has its two closing blocks of zeros at `end`, and nothing but zeros after them.

    tarfile, as every reader of tars, takes the end of the file, or a header that it cannot read, for the end of the
    archive too: of a shard that was cut between two members the others would be lost without a word.
    """
    with open_data(shard) as file:
        file.seek(end)
        closing = file.read(2 * _TAR_BLOCK)
        if len(closing) < _TAR_BLOCK or (len(closing) < 2 * _TAR_BLOCK and not any(closing)):
            raise DataError(
                f"the shard {shard} is cut short: its {length:,} bytes end without the two blocks of zeros that close "
                f"a tar; {_MEND}"
            )
        if any(closing):
            raise DataError(f"the shard {shard} is damaged: the header at byte {end:,} cannot be read; {_MEND}")
        # Two tars in one file, by `cat`: what comes after the zeros would never be read. Padding is short.
        if any(file.read(_MAX_PADDING)):
            raise DataError(
                f"the shard {shard} goes on after its end at byte {end:,}, as tars do that were put together with cat; "
                "give them as files of their own, or join them with `tar -A`"
            )


def expand_shards(pattern: str) -> list[Path]:
    """Return the files that a shard pattern names, in order, expanded as a shell does.

    `train-{000000..000146}.tar`, `{train,extra}.tar`, `*.tar`.

    Raises:
        DataError: a path that does not exist, or a pattern that matches nothing or too much.
    """
    names = list(_braces(pattern))
    try:
        paths = [path for name in names for path in (_glob(name) if "*" in name else [Path(name)])]
    except ValueError as error:  # a** and its like
        raise DataError(f"the shard pattern {pattern} cannot be searched for: {error}") from None
    missing = [path for path in paths if not path.is_file()]
    if not paths or missing:
        what = (
            f"{len(missing)} of {len(paths)} shards are missing, first {missing[0]}"
            if missing
            else "no file matches it"
        )
        raise DataError(f"the shard pattern {pattern}: {what}")
    return paths


def _braces(pattern: str) -> Iterator[str]:
    # Every second part was inside of braces. The product is checked before it is built: {0..9}{0..9}… grows fast.
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [[part] if at % 2 == 0 else _choices(part, pattern) for at, part in enumerate(parts)]
    total = math.prod(len(choice) for choice in choices)
    if total > _MAX_SHARDS:
        raise DataError(f"the shard pattern {pattern} means {total:,} files; at most {_MAX_SHARDS:,} are taken")
    return map("".join, product(*choices))


def _choices(part: str, pattern: str) -> list[str]:
    numbers = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", part)
    if not numbers:
        return part.split(",")
    first, last = numbers.groups()
    if int(last) < int(first) or int(last) - int(first) >= _MAX_SHARDS:
        raise DataError(f"the shard pattern {pattern}: expected {{first..last}}, and found {{{part}}}")
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _glob(name: str) -> list[Path]:
    path = Path(name)
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor) if path.anchor else name)))
