"""The order of an epoch is arithmetic: position -> index in O(1), from (seed, epoch) alone.

Nothing is stored and nothing is drawn one after the other, so resuming is one integer (batches done), every worker
computes its own indices, ranks take slices, and the same seed gives the same order on any loader and any number of
GPUs. The permutation is an alternating Feistel network over pairs (high, low) whose product is just above the length
of the data set; the few positions that fall outside are sent through again until they are inside (cycle walking:
Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
_Half = NDArray[np.uint32]

_ROUNDS = 6  # four suffice in theory; tiny data sets have few round functions, and two more rounds cost nanoseconds
_CHUNK = 1 << 14  # positions worked on together: the scratch arrays stay in the L2 cache
_32 = np.uint64(32)
_15 = np.uint32(15)
_ODD_1, _ODD_2 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)


def _round_keys(seed: int, epoch: int) -> list[np.uint32]:
    digest = hashlib.blake2b(f"inkmill order {seed} {epoch}".encode(), digest_size=4 * _ROUNDS).digest()
    return list(np.frombuffer(digest, "<u4").astype(np.uint32))


def _mix(half: _Half, key: np.uint32) -> _Half:
    """Hash 32-bit words, the upper bits being the good ones; uint32 because NumPy multiplies those with SIMD."""
    mixed = half * _ODD_1
    mixed += key
    mixed ^= mixed >> _15
    mixed *= _ODD_2
    return mixed


def _feistel(values: NDArray[np.uint64], low_bits: int, high_size: int, keys: list[np.uint32]) -> NDArray[np.uint64]:
    """Permute the numbers below `high_size << low_bits`: low is changed by exclusive or, high by addition modulo."""
    shift, low_shift, size = np.uint64(low_bits), np.uint32(32 - low_bits), np.uint64(high_size)
    low = (values & np.uint64((1 << low_bits) - 1)).astype(np.uint32)
    high = (values >> shift).astype(np.uint32)
    for high_key, low_key in zip(keys[::2], keys[1::2], strict=True):
        high += ((_mix(low, high_key) * size) >> _32).astype(np.uint32)
        np.minimum(high, high - np.uint32(high_size), out=high)  # modulo: the difference wraps around unless it is due
        low ^= _mix(high, low_key) >> low_shift
    return (high.astype(np.uint64) << shift) | low


@dataclass(frozen=True, slots=True)
class Order:
    """In which order the samples of a data set come.

    Args:
        length: samples in the data set, 0 to 2**60.
        seed: any integer.
        shuffle: False gives 0, 1, 2, ... in every epoch.
    """

    length: int
    seed: int
    shuffle: bool = True

    def indices(self, epoch: int, start: int, stop: int) -> Index:
        """Return the sample indices at positions `start` to `stop` of an epoch.

        Returns:
            int64 (stop - start,); over all positions each index of the data set comes exactly once.

        Raises:
            IndexError: positions outside 0 <= start <= stop <= length.
        """
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"positions {start}:{stop} are not within a data set of {self.length} samples")
        if not self.shuffle or self.length < 2:
            return np.arange(start, stop, dtype=np.int64)
        keys = _round_keys(self.seed, epoch)
        out = np.empty(stop - start, np.int64)
        for first in range(start, stop, _CHUNK):
            last = min(first + _CHUNK, stop)
            out[first - start : last - start] = self._permuted(first, last, keys)
        return out

    def _permuted(self, start: int, stop: int, keys: list[np.uint32]) -> NDArray[np.uint64]:
        low_bits = max(1, (self.length - 1).bit_length() // 2)
        high_size = -(-self.length >> low_bits)
        limit = np.uint64(self.length)
        values = _feistel(np.arange(start, stop, dtype=np.uint64), low_bits, high_size, keys)
        outside = np.flatnonzero(values >= limit)
        while len(outside):
            again = _feistel(values[outside], low_bits, high_size, keys)
            values[outside] = again
            outside = outside[again >= limit]
        return values


def rank_slice(samples: Index, rank: int, world_size: int) -> Index:
    """Return one rank's contiguous part of a global batch: all parts differ by at most one sample, none overlaps."""
    return samples[len(samples) * rank // world_size : len(samples) * (rank + 1) // world_size]


class BatchOrder:
    """Which samples make batch `number` of an epoch, for one rank.

    The unit is the global batch: `batch_size` samples a rank, `world_size` ranks. What a global batch holds depends on
    its size alone, so a run can resume with another number of ranks if the global batch stays. An epoch is exact: every
    sample once. The last global batch (with buckets: the last of each bucket) may be short; it is split as evenly as
    possible, and every rank gets the same number of batches. A rank's part is empty only when that batch has fewer
    samples than there are ranks: such a rank takes part in the step with a loss of zero.

    Args:
        order: the order of the samples.
        batch_size: samples a batch and rank.
        rank, world_size: which part of each global batch is returned.
        bucket_widths: int (N,), for pictures of free width: each batch holds samples of one width, and the order of
            the batches is shuffled too. The plan of an epoch then takes O(N), once.
    """

    def __init__(
        self,
        order: Order,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        bucket_widths: NDArray[np.integer] | None = None,
    ) -> None:
        self.order = order
        self.global_batch = batch_size * world_size
        self.rank, self.world_size = rank, world_size
        self._widths = bucket_widths
        self._planned: tuple[int, list[Index]] | None = None  # the epoch last asked for
        if bucket_widths is None:
            self._length = -(-order.length // self.global_batch)
        else:
            _, counts = np.unique(bucket_widths, return_counts=True)
            self._length = int((-(-counts // self.global_batch)).sum())

    def __len__(self) -> int:
        """Batches in an epoch, the same for every rank."""
        return self._length

    def samples(self, epoch: int, number: int) -> Index:
        """Return the sample indices of this rank in batch `number`: int64 (B,) with B <= batch_size.

        Raises:
            IndexError: no such batch.
        """
        if not 0 <= number < self._length:
            raise IndexError(f"batch {number} is not within an epoch of {self._length} batches")
        if self._widths is not None:
            return rank_slice(self._plan(epoch)[number], self.rank, self.world_size)
        start = number * self.global_batch
        size = min(self.global_batch, self.order.length - start)
        first, last = size * self.rank // self.world_size, size * (self.rank + 1) // self.world_size
        return self.order.indices(epoch, start + first, start + last)

    def batches(self, epoch: int, first: int) -> Iterator[Index]:
        """Yield `samples` of every batch from `first` on, of one rank many batches together, which costs a quarter."""
        size = self.global_batch
        together = max(1, _CHUNK // size) if self.world_size == 1 and self._widths is None else 1
        for start in range(first, self._length, together):
            if together == 1:
                yield self.samples(epoch, start)
            else:
                samples = self.order.indices(epoch, start * size, min((start + together) * size, self.order.length))
                yield from (samples[begin : begin + size] for begin in range(0, len(samples), size))

    def widths(self, epoch: int) -> NDArray[np.int64]:
        """Return the width of the images of every batch of an epoch, int64 (batches,); every epoch has as many of each.

        Raises:
            ValueError: the images have no widths of their own.
        """
        if self._widths is None:
            raise ValueError("only an order by bucket widths knows the widths of its batches")
        return np.array([self._widths[batch[0]] for batch in self._plan(epoch)], np.int64)

    def _plan(self, epoch: int) -> list[Index]:
        """Cut the epoch's permutation into batches of one width each, and shuffle those."""
        planned = self._planned  # read once: threads may plan at the same time, with the same result
        if planned is not None and planned[0] == epoch:
            return planned[1]
        assert self._widths is not None
        permuted = self.order.indices(epoch, 0, self.order.length)
        widths = self._widths[permuted]
        by_width = permuted[np.argsort(widths, kind="stable")]
        edges = np.concatenate([[0], np.cumsum(np.unique(widths, return_counts=True)[1])])
        batches = [
            by_width[start : min(start + self.global_batch, last)]
            for first, last in pairwise(edges)
            for start in range(first, last, self.global_batch)
        ]
        sequence = Order(len(batches), self.order.seed, self.order.shuffle).indices(epoch, 0, len(batches))
        plan = [batches[i] for i in sequence]
        self._planned = (epoch, plan)
        return plan
