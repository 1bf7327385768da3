"""Tar shards read by DALI's own reader, `fn.readers.webdataset`: it brings the order as well as the bytes.

The reader goes through the tars from front to back and picks at random among the next 1024 samples, so disks and
network file systems see long reads, and only shards that were shuffled when they were written are shuffled well. To
make that order a function of (seed, epoch), as everything in inkmill is, each epoch has a new reader with its own seed,
which takes a millisecond or two. It cannot jump: resuming in the middle of an epoch reads again what came before.

What the reader finds comes from index files that are written here. They list the samples of the plan and no others, and
where a member's name belongs they hold the sample's number, which DALI hands back in `source_info`: so each image is
matched with its target, its key and its random numbers.
"""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import sample_states
from inkmill.data.loaders.dali import reason_of, require_dali
from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.sources.base import Source
from inkmill.data.sources.combine import Subset
from inkmill.data.sources.shards import Member, ShardSource, write_index
from inkmill.errors import ConfigError, DataError

require_dali("DALI's reader")
from nvidia.dali import Pipeline, fn  # noqa: E402

Index = NDArray[np.int64]
_EXTENSION = "image"  # of all members in the index files written here
_REMEMBERED = 16  # batches whose samples can be asked for again: more than are in flight when a pipeline dies


class DaliReader:
    """Which samples make each batch, and their encoded images. One process calls it, batch after batch.

    A rank has one of `world_size` stretches of the samples in each epoch, another one in the next, as in DALI. Batches
    are as large as those of `BatchOrder`, so every rank has the same number of them.

    Args:
        plan: what to load; its source is tar shards or a part of them.

    Raises:
        ConfigError: the plan asks for what the reader cannot do; the sentence says what instead.
    """

    def __init__(self, plan: LoadPlan) -> None:
        _check(plan)
        shards, places = _places(plan.source)
        self._plan, self._length = plan, len(places)
        folder = Path(mkdtemp(prefix="inkmill-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._tars, self._indexes = _write_indexes(shards, places, folder)
        self._reader: Any = None
        self._at = (-1, -1)
        self._images: list[bytes] = []
        self._rows: dict[tuple[int, int], Index] = {}

    def samples(self, epoch: int, number: int) -> Index:
        """Return the samples of a batch: int64 (B,), B <= batch_size."""
        if (epoch, number) not in self._rows:
            self._read_to(epoch, number)
        return self._rows[epoch, number]

    def images(self, epoch: int, number: int) -> list[bytes]:
        """Return their encoded images, in the same order."""
        if self._at != (epoch, number):
            self._read_to(epoch, number)
        return self._images

    def _read_to(self, epoch: int, number: int) -> None:
        try:
            if self._reader is None or epoch != self._at[0] or number <= self._at[1]:
                self._open(epoch)
            while self._at[1] < number:
                self._read_next()
        except RuntimeError as error:
            self._reader = None
            raise DataError(f"DALI's reader failed on {self._plan.source.name}: {reason_of(error)}") from error

    def _open(self, epoch: int) -> None:
        """Build a pipeline that only reads: its outputs are the images' bytes and where each came from."""
        plan = self._plan
        pipeline = Pipeline(batch_size=plan.batch_size, num_threads=1, device_id=None, exec_dynamic=True)
        with pipeline:
            members = fn.readers.webdataset(
                paths=self._tars,
                index_paths=self._indexes,
                ext=[_EXTENSION],
                random_shuffle=True,
                seed=int(sample_states(plan.seed, epoch, np.zeros(1, np.int64))[0]) & 0x7FFFFFFF,
                shard_id=self._stretch(epoch),
                num_shards=plan.world_size,
            )
            pipeline.set_outputs(members, fn.get_property(members, key="source_info"))
        pipeline.build()
        self._reader, self._at = pipeline, (epoch, -1)

    def _stretch(self, epoch: int) -> int:
        return (self._plan.rank + epoch) % self._plan.world_size

    def _read_next(self) -> None:
        epoch, number = self._at[0], self._at[1] + 1
        images, infos = self._reader.run()
        # The reader goes round its stretch and fills the last batch with what comes first: that is cut off.
        ranks, stretch, batch_size = self._plan.world_size, self._stretch(epoch), self._plan.batch_size
        samples = self._length * (stretch + 1) // ranks - self._length * stretch // ranks
        size = min(batch_size, samples - number * batch_size)
        self._images = [images.at(row).tobytes() for row in range(size)]
        numbers = [int(infos.at(row).tobytes().rpartition(b":")[2]) for row in range(size)]
        self._rows[epoch, number] = np.array(numbers, np.int64)
        self._at = epoch, number
        if len(self._rows) > _REMEMBERED:
            del self._rows[next(iter(self._rows))]


def _check(plan: LoadPlan) -> None:
    instead = "use dali_reader=inkmill"
    if plan.resize.buckets:
        raise ConfigError(f"DALI's reader cannot sort pictures by size: use input_resize=pad, or {instead}")
    if plan.cache.tier != "none":
        raise ConfigError(f"DALI's reader would read again what is cached: use cache=none, or {instead}")
    if len(plan.source) < plan.world_size:
        raise ConfigError(f"DALI's reader needs a sample for each of {plan.world_size} ranks: {instead}")


def _places(source: Source) -> tuple[list[Path], NDArray[np.int64]]:
    """Return shards, and for each sample the shard's number, its image's offset and size: int64 (N, 3)."""
    if isinstance(source, Subset):
        shards, places = _places(source.source)
        return shards, places[source.indices]
    if isinstance(source, ShardSource):
        return source.shards, source.places
    raise ConfigError(
        f"DALI's reader reads one set of tar shards, and {source.name} is something else: use dali_reader=inkmill, or"
        " convert it (inkmill convert SOURCE TARGET --to shards)"
    )


def _write_indexes(shards: list[Path], places: NDArray[np.int64], folder: Path) -> tuple[list[str], list[str]]:
    """Write one index for each shard that has samples; return the shards' paths and the indexes'."""
    tars, indexes = [], []
    by_shard = np.argsort(places[:, 0], kind="stable")
    numbers, starts = np.unique(places[by_shard, 0], return_index=True)
    for number, samples in zip(numbers.tolist(), np.split(by_shard, starts[1:]), strict=True):
        path = folder / f"{number}.idx"
        rows = zip(samples.tolist(), places[samples, 1:].tolist(), strict=True)
        members = ((Member(_EXTENSION, offset, size, str(sample)),) for sample, (offset, size) in rows)
        write_index(path, members, len(samples))
        tars.append(str(shards[number]))
        indexes.append(str(path))
    return tars, indexes
