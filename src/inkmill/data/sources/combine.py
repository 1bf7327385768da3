"""Sources made of sources: a part of one, several in a row, several by weight; and the split for validation.

All of it is index arithmetic: no sample is copied, and none is read.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inkmill.data.sources.base import Source, fingerprint
from inkmill.data.types import Sample, Target
from inkmill.errors import ConfigError, DataError

_REPEAT = re.compile(r"#\d+$")  # FolderSource's mark of the second and later mentions of one image


class _Composed(Source):
    """A source whose samples are those of other sources: subclasses say which one lies where, this class reads them."""

    @abstractmethod
    def locate(self, index: int) -> tuple[int, int]:
        """Return (number of the part, index in it) of sample `index`."""

    def get(self, index: int) -> Sample:
        """See `Source.get`; in one go, as the part reads it."""
        number, inner = self.locate(index)
        return self._renamed(number, self.parts()[number].get(inner))

    @contextmanager
    def reading(self, index: Sequence[int] = ()) -> Iterator[Callable[[int], Sample]]:
        """See `Source.reading`."""
        wanted = self._by_part(index) if self.together else {}
        with ExitStack() as stack:
            parts = enumerate(self.parts())
            gets = [stack.enter_context(part.reading(wanted.get(number, ((), ()))[1])) for number, part in parts]

            def get(index: int) -> Sample:
                number, inner = self.locate(index)
                return self._renamed(number, gets[number](inner))

            yield get

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        number, inner = self.locate(index)
        return self.parts()[number].image(inner)

    def outside(self, index: int) -> bool:
        """See `Source.outside`."""
        number, inner = self.locate(index)
        return self.parts()[number].outside(inner)

    def key(self, index: int) -> str:
        """See `Source.key`."""
        number, inner = self.locate(index)
        return self._key(number, self.parts()[number].key(inner))

    def target(self, index: int) -> Target:
        """See `Source.target`."""
        number, inner = self.locate(index)
        return self.parts()[number].target(inner)

    def described(self, index: Sequence[int]) -> tuple[list[str], list[Target]]:
        """See `Source.described`; each part is asked once, for LMDBs answer many in one transaction."""
        found: dict[int, tuple[str, Target]] = {}
        for number, (rows, inner) in self._by_part(index).items():
            keys, targets = self.parts()[number].described(inner)
            named = ((self._key(number, key), target) for key, target in zip(keys, targets, strict=True))
            found |= zip(rows, named, strict=True)
        return [found[row][0] for row in range(len(index))], [found[row][1] for row in range(len(index))]

    def files(self, index: Sequence[int]) -> list[Path]:
        """See `Source.files`."""
        groups = self._by_part(index).items()
        return list(dict.fromkeys(file for number, (_, inner) in groups for file in self.parts()[number].files(inner)))

    def _by_part(self, index: Sequence[int]) -> dict[int, tuple[list[int], list[int]]]:
        """Return number of the part -> (positions in `index`, indices in that part)."""
        groups: dict[int, tuple[list[int], list[int]]] = {}
        for row, i in enumerate(index):
            number, inner = self.locate(i)
            rows, inside = groups.setdefault(number, ([], []))
            rows.append(row)
            inside.append(inner)
        return groups

    def _key(self, number: int, key: str) -> str:
        """Return the key here of a sample of part `number`."""
        return key

    def _renamed(self, number: int, sample: Sample) -> Sample:
        key = self._key(number, sample.key)
        return sample if key is sample.key else Sample(key, sample.image, sample.target)


class Subset(_Composed):
    """The samples of a source at some indices, in their order; keys stay those of the source.

    Args:
        source: the whole.
        indices: int64 (N,), each in 0..len(source) - 1; an index may come several times.

    Raises:
        DataError: an index that the source does not have.
    """

    def __init__(self, source: Source, indices: ArrayLike) -> None:
        super().__init__(source.name, source.notes)
        self.source = source
        self.indices: NDArray[np.int64] = np.ascontiguousarray(indices, np.int64).reshape(-1)
        wrong = self.indices[(self.indices < 0) | (self.indices >= len(source))]
        if wrong.size:
            raise DataError(f"{source.name} has {len(source)} samples; there is no sample {wrong[0]}")

    def __len__(self) -> int:
        return len(self.indices)

    def locate(self, index: int) -> tuple[int, int]:
        """Return (0, index in the whole) of sample `index`."""
        return 0, int(self.indices[self._checked(index)])

    def parts(self) -> Sequence[Source]:
        """See `Source.parts`."""
        return (self.source,)

    def described(self, index: Sequence[int]) -> tuple[list[str], list[Target]]:
        """See `Source.described`; with one part and its keys there is nothing to sort, which counts in every batch."""
        return self.source.described(self.indices[np.asarray(index, np.int64)].tolist())

    @property
    def storage_fingerprint(self) -> str:
        """See `Source.storage_fingerprint`."""
        return self.source.storage_fingerprint

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return fingerprint("subset", self.source.fingerprint, self.indices)

    @cached_property
    def identity(self) -> str:
        """See `Source.identity`."""
        return fingerprint("subset", self.source.identity, self.indices)


class Mix(_Composed):
    """Several sources in a row, each as often as its weight says: with 2 every sample twice, with 0.1 a tenth of them.

    The share of a fractional weight is spread evenly over the source and is the same every time. Keys get the
    source's number and name in front, so that they stay unique; a repeated sample has the same key each time.

    Args:
        sources: at least one.
        weights: one positive number a source; 1 for all when left out.

    Raises:
        ConfigError: no source, or weights that do not go with the sources.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float] | None = None) -> None:
        weights = [1.0] * len(sources) if weights is None else [float(weight) for weight in weights]
        if not sources or len(weights) != len(sources):
            raise ConfigError(f"a mix needs one weight a source: {len(sources)} sources, {len(weights)} weights")
        if not all(0 < weight < float("inf") for weight in weights):
            raise ConfigError(f"the weights of a mix must be positive numbers, and are {weights}")
        notes = tuple(note for source in sources for note in source.notes)
        super().__init__("+".join(source.name for source in sources), notes)
        self.sources, self.weights = list(sources), weights
        counts = [max(round(weight * len(source)), 1) for source, weight in zip(sources, weights, strict=True)]
        self._ends: NDArray[np.int64] = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, index: int) -> tuple[int, int]:
        """Return (number of the source, index in it) of sample `index`."""
        # 1. Which source: each has `count` places in a row, which end where the next one begins.
        index = self._checked(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        start = int(self._ends[number - 1]) if number else 0
        length, count = len(self.sources[number]), int(self._ends[number]) - start
        position = index - start
        # 2. The whole part of the weight: the source again and again from its beginning.
        whole = count // length * length
        if position < whole:
            return number, position % length
        # 3. The fraction: every so many samples one, evenly over the source, so that any part of it is represented.
        return number, (position - whole) * length // (count - whole)

    def _key(self, number: int, key: str) -> str:
        return f"{number}/{self.sources[number].name}/{key}"

    def parts(self) -> Sequence[Source]:
        """See `Source.parts`."""
        return self.sources

    @property
    def storage_fingerprint(self) -> str:
        """See `Source.storage_fingerprint`; the weights count, since they say which of the sets is read most."""
        return "+".join(source.storage_fingerprint for source in self.sources) + repr(self.weights)

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return fingerprint("mix", *(source.fingerprint for source in self.sources), repr(self.weights))

    @cached_property
    def identity(self) -> str:
        """See `Source.identity`."""
        return fingerprint("mix", *(source.identity for source in self.sources), repr(self.weights))


class Concat(Mix):
    """Several sources in a row, each once."""

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__(sources)


def holdout(source: Source, fraction: float, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a source into a training and a validation part, by each sample's key and not by the order of files.

    Each key is hashed (blake2b, keyed by the seed) and the smallest hashes are held out: the same samples for the same
    keys, however they are ordered, and new samples move few old ones. Samples with one image stay on one side.

    Args:
        source: the whole.
        fraction: share to hold out, between 0 and 1; at least one sample is.
        seed: a different seed holds out different samples.

    Returns:
        Indices of the training part and of the validation part, int64, ascending, together all of them.

    Raises:
        ConfigError: a fraction outside of 0..1.
        DataError: too few different samples for two parts.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"the share to hold out must lie between 0 and 1, and is {fraction}")
    # 1. One number a sample, which depends on its key and the seed alone.
    salt = seed.to_bytes(16, "little", signed=True)
    digests = b"".join(_digest(source.key(index), salt) for index in range(len(source)))
    hashes = np.frombuffer(digests, "<u8")
    # 2. The smallest ones are held out. Equal ones lie on one side, so mentions of one image are never split.
    count = max(round(fraction * len(hashes)), 1)
    held = hashes <= np.partition(hashes, count - 1)[count - 1] if len(hashes) else np.zeros(0, bool)
    if held.all():
        raise DataError(f"{source.name} has {len(source)} samples, too few to hold some out: give a validation set")
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)


def _digest(key: str, salt: bytes) -> bytes:
    return hashlib.blake2b(_REPEAT.sub("", key).encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
