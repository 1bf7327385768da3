"""What a check found: which samples of a set would be used, which would not and why, and what the set looks like.

The report is arrays of one entry a sample plus short lists of examples, so a million samples take some 30 MB. It can
be kept beside the results and read back, without pickle, so that a set that did not change is not checked twice.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.alike import alike
from inkmill.errors import DataError
from inkmill.files import atomic_path

ASPECT_EDGES = (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, np.inf)
"""Edges of the aspect-ratio histogram (width / height); a bin holds its lower edge."""

MAX_EXAMPLES = 1000
"""Longest list of examples for one reason; the counts are exact."""

_ARRAYS = {"keep": np.int64, "sizes": np.int32, "image_hashes": np.uint64, "image_looks": np.uint64}

# What NumPy, zipfile and json raise on files that are torn, damaged or something else.
_NOT_A_REPORT = (
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    RuntimeError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class Dropped(NamedTuple):
    """One sample that would not be used: its position, key, normalised label, and what exactly is wrong."""

    position: int
    key: str
    label: str
    detail: str


@dataclass(frozen=True, eq=False)
class CheckReport:
    """The result of checking one set of N samples.

    Attributes:
        name: the set's own short name.
        fingerprint: stands for the set's contents when it was checked.
        rules_digest: stands for the rules it was checked by.
        keep: int64 (K,), positions of the samples to use, ascending.
        sizes: int32 (N, 2), width and height in pixels as a viewer shows the image; 0 where unknown.
        image_hashes: uint64 (N,), BLAKE2b of the encoded bytes; 0 where missing.
        image_looks: uint64 (N, 2), see `inkmill.data.jobs.alike`; 0 where unknown.
        counts: how many samples are dropped, by reason.
        dropped: examples by reason, at most `MAX_EXAMPLES` each.
        facts: what the task counted in the labels, plain JSON values by name (see `SetJudge.facts`).
    """

    name: str
    fingerprint: str
    rules_digest: str
    keep: NDArray[np.int64]
    sizes: NDArray[np.int32]
    image_hashes: NDArray[np.uint64]
    image_looks: NDArray[np.uint64]
    counts: dict[str, int]
    dropped: dict[str, list[Dropped]]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def lost(self) -> int:
        """How many samples would not be used."""
        return len(self) - len(self.keep)

    @property
    def lost_share(self) -> float:
        """The share of samples that would not be used, 0..1; 0 for an empty set."""
        return self.lost / max(len(self), 1)

    @cached_property
    def duplicates(self) -> NDArray[np.int64]:
        """Samples whose image file repeats an earlier one byte for byte: int64 (M, 2), position and first position."""
        known = np.flatnonzero(self.image_hashes)
        _, first, group = np.unique(self.image_hashes[known], return_index=True, return_inverse=True)
        original: NDArray[np.int64] = known[first][group]
        repeats = known != original
        return np.stack([known[repeats], original[repeats]], 1)

    def across(self, other: CheckReport) -> NDArray[np.int64]:
        """Return the samples whose image file is also in `other`: int64 (M, 2), position here and first position there.

        A validation set that shares images with the training set measures memory, not reading.
        """
        known = np.flatnonzero(other.image_hashes)
        hashes, first = np.unique(other.image_hashes[known], return_index=True)
        if not len(hashes):
            return np.zeros((0, 2), np.int64)
        place = np.searchsorted(hashes, self.image_hashes).clip(max=len(hashes) - 1)
        shared = np.flatnonzero((hashes[place] == self.image_hashes) & (self.image_hashes != 0))
        return np.stack([shared, known[first][place[shared]]], 1)

    def alike(self, other: CheckReport) -> NDArray[np.int64]:
        """Return the samples that look like one of `other` and are no copy of its file: int64 (M, 2) as of `across`."""
        pairs = alike(self.image_looks, other.image_looks)
        copies = np.isin(pairs[:, 0], self.across(other)[:, 0])
        return pairs[~copies]

    def part(self, rows: NDArray[np.int64]) -> CheckReport:
        """Return the report on some samples, as far as their images go: what is counted stays that of the whole."""
        return replace(
            self,
            keep=np.flatnonzero(np.isin(rows, self.keep)),
            sizes=self.sizes[rows],
            image_hashes=self.image_hashes[rows],
            image_looks=self.image_looks[rows],
        )

    def aspect_ratio_histogram(self) -> dict[str, int]:
        """Return how many images have a width / height in each bin of `ASPECT_EDGES`."""
        width, height = self.sizes[self.sizes[:, 1] > 0].T
        counts, edges = np.histogram(width / height, ASPECT_EDGES)
        names = [f"{low:g}-{high:g}" if high < np.inf else f"≥{low:g}" for low, high in pairwise(edges)]
        return dict(zip(names, map(int, counts), strict=True))

    def as_dict(self, examples: int = 10) -> dict[str, Any]:
        """Return a summary for JSON: exact counts, a few examples, the histograms."""
        return {
            "name": self.name,
            "samples": len(self),
            "kept": len(self.keep),
            "lost_share": self.lost_share,
            "dropped": self.counts,
            "examples": {
                reason: [{name: _plain(value) for name, value in entry._asdict().items()} for entry in found[:examples]]
                for reason, found in self.dropped.items()
            },
            "duplicates": len(self.duplicates),
            "aspect_ratios": self.aspect_ratio_histogram(),
            **_spelled_out(self.facts),
        }

    def save(self, path: str | Path) -> None:
        """Write the report as one .npz file: the arrays, and the rest as JSON.

        Raises:
            OutputError: the place cannot be written.
        """
        names = [field.name for field in fields(self)]
        rest = {name: getattr(self, name) for name in names if name not in _ARRAYS}
        # Labels may hold lone surrogates, which only the ASCII form of JSON can carry.
        text = np.frombuffer(json.dumps(rest).encode("ascii"), np.uint8)
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, json=text, **{name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: str | Path) -> CheckReport:
        """Read a report that `save` wrote.

        Raises:
            DataError: no such file, or not a report.
        """
        try:
            # Opened here, because np.load leaves a torn file open.
            with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                rest: dict[str, Any] = json.loads(file["json"].tobytes())
                rest |= {name: np.asarray(file[name], dtype) for name, dtype in _ARRAYS.items()}
            rest["dropped"] = {
                reason: [Dropped(*entry) for entry in found] for reason, found in rest["dropped"].items()
            }
            return cls(**rest)
        except OSError as error:
            raise DataError(f"cannot read the check report {path}: {error.strerror or error}") from error
        except _NOT_A_REPORT as error:
            raise DataError(
                f"{path} is not a check report of this version of inkmill: delete it, it is written again"
            ) from error


def _spelled_out(value: Any) -> Any:
    """Return plain JSON values with `_plain` text throughout, the keys of mappings too."""
    if isinstance(value, dict):
        return {_plain(key): _spelled_out(item) for key, item in value.items()}
    return [_spelled_out(item) for item in value] if isinstance(value, list) else _plain(value)


def _plain(value: object) -> object:
    """Spell out lone surrogates, which UTF-8 cannot carry and labels out of JSON may hold."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
