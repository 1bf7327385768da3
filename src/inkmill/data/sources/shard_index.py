"""Where every member of a tar shard lies, which makes a shard an array: its index file, or one look at the tar.

The index is the text file that DALI's `wds2idx` writes and `fn.readers.webdataset` reads, version 1.2: a line
`v1.2 N`, then a line a sample of `extension offset size name` for each of its members. A WebDataset sample is a run of
members with the same name up to the first dot of its last part.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from inkmill.errors import DataError
from inkmill.files import explain, writing

_VERSION = "v1.2"
_BLOCK = 512


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
    """Write the index of `count` samples; names must not hold blanks. Raises OutputError."""
    with writing(path), path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{_VERSION} {count}\n")
        for sample in samples:
            file.write(" ".join(f"{m.extension} {m.offset} {m.size} {m.name}" for m in sample) + "\n")


def read_members(shard: Path) -> tuple[list[tuple[Member, ...]], bool]:
    """Return the samples of a shard, and whether its index file told (else the tar was scanned).

    An index that does not fit the tar (another size, other names at its first and last member) is not used.

    Raises:
        DataError: no such file, not a tar, or a compressed one, in which nothing can be found without unpacking.
    """
    try:
        length = shard.stat().st_size
        indexed = _from_index(index_path(shard), length)
        if indexed and _names_fit(shard, (indexed[0][0], indexed[-1][-1])):
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
    """Return what an index file says, or nothing when there is none or it is not to be trusted."""
    try:
        with path.open(encoding="utf-8") as file:
            version, count = file.readline().split()
            samples, expected = [_index_line(line) for line in file], int(count)
    except (OSError, ValueError):  # ValueError: not UTF-8, not numbers, a name with a blank in it
        return []
    inside = all(0 <= m.offset <= m.offset + m.size <= length for sample in samples for m in sample)
    return samples if version == _VERSION and expected == len(samples) and inside else []


def _index_line(line: str) -> tuple[Member, ...]:
    words = line.split()
    if not words or len(words) % 4:
        raise ValueError("not groups of four")
    groups = (words[at : at + 4] for at in range(0, len(words), 4))
    return tuple(Member(extension.lower(), int(offset), int(size), name) for extension, offset, size, name in groups)


def _names_fit(shard: Path, members: tuple[Member, Member]) -> bool:
    """Compare the name in a member's tar header (the block before its bytes, 100 bytes of it) with the index's."""
    with shard.open("rb") as file:
        for member in members:
            file.seek(max(member.offset - _BLOCK, 0))
            name = file.read(100).rstrip(b"\0")
            if not name or not member.name.encode("utf-8").endswith(name.removeprefix(b"./")):
                return False
    return True


def _scan(shard: Path, length: int) -> Iterator[tuple[Member, ...]]:
    for _, members in groupby(_tar_members(shard, length), key=lambda member: split_name(member.name)[0]):
        yield tuple(members)


def _tar_members(shard: Path, length: int) -> Iterator[Member]:
    try:
        with tarfile.open(shard, "r:") as tar:
            for info in tar:
                tar.members = []  # type: ignore[attr-defined]  # it keeps every header otherwise
                if info.size < 0:  # the next header would lie before this one, for ever
                    raise DataError(f"the shard {shard} is damaged: {info.name} has {info.size} bytes")
                last = info.name.rpartition("/")[2]
                if not info.isreg() or last.startswith(".") or (last.startswith("__") and last.endswith("__")):
                    continue
                if info.offset_data + info.size > length:
                    raise DataError(f"the shard {shard} is cut short: {info.name} ends after the file does")
                yield Member(split_name(info.name)[1], info.offset_data, info.size, info.name)
    except (tarfile.TarError, ValueError) as error:  # ValueError: a header about headers, of negative size
        raise DataError(f"{shard} is not an uncompressed tar file ({error}): unpack it, or convert it again") from error
