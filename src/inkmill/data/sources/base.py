"""`Source`: a data set as an array of samples, whatever it is stored in; and what sources keep their names in."""

from __future__ import annotations

import hashlib
import operator
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.types import Sample, Target
from inkmill.errors import DataError
from inkmill.files import open_data

MAX_IMAGE_BYTES = 256 << 20
"""Largest image file that is read: 256 MiB is far above any photograph and far below a machine's memory."""


class Source(ABC):
    """A data set as an array: random access by index, and nothing random about it.

    A new kind of storage writes `__len__`, `image`, `key`, `target` and `fingerprint`; everything else has a default
    that is right for any source, and may be overridden where the storage can do it faster.

    A source is pickled into worker processes. Handles (LMDB environments, open files) are opened there on first use
    and never carried over. Threads may call any method at the same time.

    Args:
        name: short name for tables, e.g. the folder's or file's own.
        notes: see the attribute.

    Attributes:
        name: see above.
        notes: what a user should know about how the data were understood, one sentence each: the format and why it
            was detected, what was left out and how often.
        label_pattern: the regular expression by which labels are taken from names of files; empty where they are not.
        together: whether it makes samples rather than reads them, many at a time for less, see `reading`.
        small_files: whether each sample is a file of its own, which a slow disk serves one by one.
    """

    name: str
    notes: tuple[str, ...] = ()
    small_files: bool = False

    @property
    def together(self) -> bool:
        """See the class."""
        return any(part.together for part in self.parts())

    label_pattern: str = ""

    def __init__(self, name: str, notes: tuple[str, ...] = ()) -> None:
        self.name = name
        self.notes = notes

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def image(self, index: int) -> bytes:
        """Return the encoded image of sample `index`; raises DataError naming its key."""

    @abstractmethod
    def key(self, index: int) -> str:
        """Return the key of sample `index`, unique and stable, without reading its image."""

    @abstractmethod
    def target(self, index: int) -> Target:
        """Return the target of sample `index` without reading its image."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of the contents; it changes when they do. It hashes names, sizes and times, not pixels."""

    @cached_property
    def identity(self) -> str:
        """Hex digest of the samples in their order; a copy of the data with other file times has the same."""
        return fingerprint("keys", PackedStrings(map(self.key, range(len(self)))))

    @property
    def storage_fingerprint(self) -> str:
        """Like `fingerprint`, of the whole data sets below: all parts of one set have the same."""
        return self.fingerprint

    def get(self, index: int) -> Sample:
        """Return sample `index`; raises DataError naming its key when its bytes cannot be read."""
        return Sample(self.key(index), self.image(index), self.target(index))

    @contextmanager
    def reading(self, index: Sequence[int] = ()) -> Iterator[Callable[[int], Sample]]:
        """Give a `get` for many samples in a row, which may be cheaper; valid within the block, for one thread.

        `index` are the samples that will be asked for; one whose samples are made `together` makes these.

        A subclass that overrides `get` of another kind of source overrides this too, since loaders call this one.
        """
        yield self.get

    def described(self, index: Sequence[int]) -> tuple[list[str], list[Target]]:
        """Return the keys and the targets of many samples, without reading an image."""
        return [self.key(i) for i in index], [self.target(i) for i in index]

    def outside(self, index: int) -> bool:
        """Return whether the image of sample `index` lies outside the folder of the data set, where its name led."""
        return False

    def files(self, index: Sequence[int]) -> list[Path]:
        """Return the files that hold the images of some samples, each once; empty if they are not in files."""
        return []

    def parts(self) -> Sequence[Source]:
        """Return the sources that this one is made of; empty for one that reads from storage itself."""
        return ()

    def leaves(self) -> Iterator[Source]:
        """Yield the sources at the bottom, which read from storage: this one, or those of its parts."""
        parts = self.parts()
        if not parts:
            yield self
        for part in parts:
            yield from part.leaves()

    def release(self) -> None:
        """Close what is open; it is opened again on the next use."""
        for part in self.parts():
            part.release()

    def _checked(self, index: int) -> int:
        """Return an index in range as a Python int; negative ones count from the end, as in any sequence."""
        position = operator.index(index)
        position += len(self) if position < 0 else 0
        if not 0 <= position < len(self):
            raise IndexError(f"{self.name} has {len(self)} samples; there is no sample {index}")
        return position


def check_image_bytes(size: int, key: str) -> None:
    """Raise DataError for an image file that is too large to be one, before it is read."""
    if size > MAX_IMAGE_BYTES:
        raise DataError(f"{key}: {size:,} bytes are more than the {MAX_IMAGE_BYTES >> 20} MiB an image may have")


def read_image(path: str | Path, key: str) -> bytes:
    """Return the bytes of an image file.

    Raises:
        DataError: too large to be an image.
        OSError: it cannot be read, or is no regular file.
    """
    with open_data(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_image_bytes(size, key)
        return file.read(size)  # not to its end: some files of /proc have none


class PackedStrings:
    """Many short strings in two buffers: a sequence that can only be appended to.

    A list of a million Python strings is 60 MB of objects. Every worker process touches their reference counts, which
    copies the pages; one blob and an array of offsets are a tenth of that, are pickled at the speed of memory, and stay
    shared. The strings need not be valid Unicode: file names, labels out of JSON.
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._blob = bytearray()
        self._ends = array("q", [0])
        for string in strings:
            self.append(string)

    def append(self, string: str) -> None:
        """Add one string at the end."""
        self._blob += string.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._blob))

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


def repeats(strings: PackedStrings) -> dict[int, int]:
    """Return index -> how many-th mention (2, 3, ...) it is, for every string that came before."""
    # Equal hashes first, without a string in memory; only their strings are then compared.
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
