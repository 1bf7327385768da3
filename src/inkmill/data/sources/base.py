"""What every kind of source shares: bounds, a name, a fingerprint taken once, and notes about what was seen."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path

from inkmill.data.sources.packed import PackedStrings, fingerprint
from inkmill.data.types import Sample, Source, Target
from inkmill.errors import DataError

MAX_IMAGE_BYTES = 256 << 20
"""Largest image file that is read: 256 MiB is far above any photograph and far below a machine's memory."""


class BaseSource:
    """Base of the sources; see `inkmill.data.types.Source` for what each method promises.

    Attributes:
        name: short name for tables.
        notes: what a user should know about how the data were understood, one sentence each: the format and why,
            what was left out and how often.
    """

    def __init__(self, name: str, notes: tuple[str, ...] = ()) -> None:
        self.name = name
        self.notes = notes

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest that stands for the contents."""
        return self._fingerprint()

    def _fingerprint(self) -> str:
        raise NotImplementedError

    @cached_property
    def identity(self) -> str:
        """Hex digest that stands for the samples in their order, the same for a copy of the data with other times."""
        return self._identity()

    def _identity(self) -> str:
        return fingerprint("keys", PackedStrings(map(self.key, range(len(self)))))

    def __len__(self) -> int:
        raise NotImplementedError

    def get(self, index: int) -> Sample:
        """Return sample `index`; raises DataError naming its key when its bytes cannot be had."""
        return Sample(self.key(index), self.image(index), self.target(index))

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], Sample]]:
        """Give a `get` for many samples in a row, which may be cheaper; good within the block, for one thread.

        A source that overrides `get` of another one overrides this too, or loaders will not see it.
        """
        yield self.get

    def image(self, index: int) -> bytes:
        """Return the encoded image of sample `index`; raises DataError naming its key."""
        raise NotImplementedError

    def key(self, index: int) -> str:
        """Return the key of sample `index`."""
        raise NotImplementedError

    def target(self, index: int) -> Target:
        """Return the target of sample `index`; its image is not read."""
        raise NotImplementedError

    def described(self, index: Sequence[int]) -> tuple[list[str], list[Target]]:
        """Return the keys and the targets of many samples, without reading an image."""
        return [self.key(i) for i in index], [self.target(i) for i in index]

    def files(self, index: Sequence[int]) -> list[Path]:
        """Return the files that hold the images of some samples, each once; none where they lie in no file."""
        return []

    def release(self) -> None:
        """Close what is open; it is opened again when it is needed."""

    def _checked(self, index: int) -> int:
        """Return an index in range as a Python int; negative ones count from the end, as in any sequence."""
        position = operator.index(index)
        position += len(self) if position < 0 else 0
        if not 0 <= position < len(self):
            raise IndexError(f"{self.name} has {len(self)} samples; there is no sample {index}")
        return position


def identity_of(source: Source) -> str:
    """Return what stands for the samples in their order; of sources of other making it is their fingerprint."""
    return source.identity if isinstance(source, BaseSource) else source.fingerprint


def check_image_bytes(size: int, key: str) -> None:
    """Refuse an image file that is empty or too large to be one; raises DataError."""
    if size > MAX_IMAGE_BYTES:
        raise DataError(f"{key}: {size:,} bytes are more than the {MAX_IMAGE_BYTES >> 20} MiB an image may have")


def reading(source: Source) -> AbstractContextManager[Callable[[int], Sample]]:
    """Give a `get` for many samples in a row, see `BaseSource.reading`; sources of other making give their own."""
    return source.reading() if isinstance(source, BaseSource) else nullcontext(source.get)


def described(source: Source, index: Sequence[int]) -> tuple[list[str], list[Target]]:
    """Return the keys and the targets of many samples; sources of other making are asked one by one."""
    if isinstance(source, BaseSource):
        return source.described(index)
    return [source.key(i) for i in index], [source.target(i) for i in index]
