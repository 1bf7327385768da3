"""Many short strings in two buffers.

A list of a million Python strings is 60 MB of objects whose reference counts every worker process touches, which
copies the pages; one blob and an array of offsets are a tenth of that, pickle at the speed of memory and stay shared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PackedStrings:
    """An immutable sequence of strings, also of those that are not valid Unicode: file names, labels out of JSON."""

    def __init__(self, strings: Iterable[str]) -> None:
        builder = PackedBuilder()
        for string in strings:
            builder.append(string)
        self._blob, self._ends = builder.buffers()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)}")
        return self._blob[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def hash_into(self, digest: Any) -> None:
        """Feed the contents, boundaries included, to a hashlib object."""
        digest.update(self._ends.tobytes())
        digest.update(self._blob)


class PackedBuilder:
    """Collects strings for a PackedStrings one by one."""

    def __init__(self) -> None:
        self._blob, self._ends = bytearray(), array("q", [0])

    def append(self, string: str) -> None:
        """Add one string at the end."""
        self._blob += string.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._blob))

    def buffers(self) -> tuple[bytes, NDArray[np.int64]]:
        """Return the strings' bytes and where each ends, int64 (N + 1,), beginning with 0."""
        return bytes(self._blob), np.frombuffer(self._ends, np.int64)

    def packed(self) -> PackedStrings:
        """Return what was collected."""
        packed = PackedStrings.__new__(PackedStrings)
        packed._blob, packed._ends = self.buffers()
        return packed


def repeats(strings: PackedStrings) -> dict[int, int]:
    """Return index -> how many-th mention (2, 3, ...) it is, for every string that came before."""
    hashes = np.fromiter(map(hash, strings), np.int64, len(strings))
    _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    seen: dict[str, int] = {}
    found: dict[int, int] = {}
    for index in np.flatnonzero(counts[inverse] > 1).tolist():
        count = seen[strings[index]] = seen.get(strings[index], 0) + 1
        if count > 1:
            found[index] = count
    return found


def fingerprint(*parts: str | bytes | NDArray[Any] | PackedStrings) -> str:
    """Return the hex digest (blake2b, 128 bits) that stands for some names, sizes and times, boundaries included."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, PackedStrings):
            part.hash_into(digest)
            continue
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else bytes(part)
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
