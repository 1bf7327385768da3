"""The endless stream of synthetic samples, cut into batches of one image size each.

Samples are drawn a chunk at a time: some ten thousand neighbouring numbers. A chunk gives each size a fixed number of
batches, by the share of the samples that fit it: its samples are sorted by width over height and dealt out in that
order, so that those nearest to a border go to the other side where the numbers ask for it, and within a size they are
shuffled. So every sample is used once, nothing is carried over, and where a batch comes from is arithmetic.

A chunk is made in a thread of its own, one ahead of what is asked for: texts on the CPU, rows on the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import sample_states
from inkmill.data.pipeline.order import rank_slice
from inkmill.synth.device import Changed, DeviceChanges, DeviceEngine, take
from inkmill.synth.params import SynthParams

COLUMNS_PER_CHARACTER = 4
"""A text gets an input of at least so many columns a character, and a character more for each that comes twice in a
row: readers trained with CTC take a step for each, and hardly any has more steps."""

_CHUNK = 32768  # samples, at least about so many
_FEWEST, _MOST = 24, 128  # batches of a chunk
_PROBE = 2048  # samples that tell how many fit each size
_PROBE_SEED = 0
_KEPT = 4  # chunks: batches of different sizes may be asked for at different paces

Size = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """One batch of the stream, its images not yet drawn.

    Attributes:
        index: int64 (B,), the samples' numbers.
        params: their rows, on the device.
        texts: what they show.
        aspects: float32 (B,), natural width / height.
        changed: the random changes of their images, None for none.
    """

    index: NDArray[np.int64]
    params: SynthParams
    texts: list[str]
    aspects: NDArray[np.float32]
    changed: Changed | None


@dataclass(frozen=True, eq=False)
class _Chunk:
    """A chunk's rows on the device, and which of them make each batch, by size."""

    first: int
    params: SynthParams
    texts: NDArray[Any]
    aspects: NDArray[np.float32]
    batches: list[NDArray[np.int64]]  # (batches, samples) of each size
    order: list[tuple[int, int]]  # (size, batch) in the stream's own order
    changed: list[Changed | None]  # of each size's samples, in the order of its batches
    ready: Any  # CUDA event, None on a CPU
    cut: int  # samples of which characters were left out


class SampleStream:
    """Batches of synthetic samples.

    Args:
        engine: draws on a device.
        seed: of the run.
        sizes: the image sizes by ascending width, at least one.
        batch_size: samples of a batch, of all ranks together.
        changes: random changes to images, None for none.
        rank, world_size: which part of each batch is drawn here.
    """

    def __init__(
        self,
        engine: DeviceEngine,
        seed: int,
        sizes: Sequence[Size],
        batch_size: int,
        changes: DeviceChanges | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._engine, self._seed, self.sizes = engine, seed, list(sizes)
        self._changes = changes
        self._size, self._rank, self._world_size = batch_size, rank, world_size
        count = int(np.clip(-(-_CHUNK // batch_size), _FEWEST, _MOST))
        self._shares = self._probe(count)
        self.batches = int(self._shares.sum())
        """Batches of a chunk."""
        self.samples = self.batches * batch_size
        """Samples of a chunk."""
        self._chunks: OrderedDict[int, Future[_Chunk]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None
        self.drawn = self.cut = 0  # samples of the chunks made, and those of which characters were left out

    @property
    def used_sizes(self) -> list[Size]:
        """The sizes that have batches: one that hardly any sample fits has none."""
        return [size for size, share in zip(self.sizes, self._shares.tolist(), strict=True) if share]

    def at(self, position: int) -> tuple[Size, Drawn]:
        """Return batch `position` of the stream's own order, and its size."""
        number, place = divmod(position, self.batches)
        chunk = self._chunk(number)
        size, batch = chunk.order[place]
        return self.sizes[size], self._drawn(chunk, size, batch)

    def of_size(self, width: int, position: int) -> Drawn:
        """Return batch `position` of those of one width; of the nearest one that has batches, where it has none."""
        widths = np.array([one[1] for one in self.sizes])
        size = int(np.where(self._shares > 0, np.abs(widths - width), np.inf).argmin())
        number, batch = divmod(position, int(self._shares[size]))
        chunk = self._chunk(number)
        return self._drawn(chunk, size, batch)

    def close(self) -> None:
        """End the thread and forget the chunks; asking again begins anew."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._chunks.clear()

    def _drawn(self, chunk: _Chunk, size: int, batch: int) -> Drawn:
        mine = rank_slice(np.arange(self._size), self._rank, self._world_size)
        rows = chunk.batches[size][batch][mine]
        begin = batch * self._size + (int(mine[0]) if len(mine) else 0)
        changed = chunk.changed[size]
        if changed is not None:
            changed = changed.rows(slice(begin, begin + len(mine)))
        params = take(chunk.params, rows)
        return Drawn(chunk.first + rows, params, chunk.texts[rows].tolist(), chunk.aspects[rows], changed)

    def _chunk(self, number: int) -> _Chunk:
        # 1. This one and the next are being made.
        self._thread = self._thread or ThreadPoolExecutor(1, "synthetic text")
        for wanted in (number, number + 1):
            if wanted not in self._chunks:
                self._chunks[wanted] = self._thread.submit(self._make, wanted)
        # 2. The ones used last stay.
        self._chunks.move_to_end(number)
        while len(self._chunks) > _KEPT:
            self._chunks.popitem(last=False)
        chunk = self._chunks[number].result()  # an error in the thread is raised here
        # 3. What the GPU still does for it comes before what is queued now.
        if chunk.ready is not None:
            stream = torch.cuda.current_stream(self._engine.device)
            stream.wait_event(chunk.ready)
            tensors: Any = (chunk.params.values, chunk.params.glyphs, chunk.params.places)
            changed = (one.values for one in chunk.changed if one is not None)
            for tensor in (*tensors, *changed):
                tensor.record_stream(stream)
        return chunk

    def _make(self, number: int) -> _Chunk:
        first = number * self.samples
        index = np.arange(first, first + self.samples)
        states = sample_states(self._seed, 0, index)
        # 1. Texts on the CPU, then rows on the device, in a stream of their own.
        codes, others = self._engine.engine.codes(states)
        with self._aside() as stream:
            params = self._engine.rows(states, codes, others)
            drawn = _fetched(params.codes)
            aspects: NDArray[np.float32] = _fetched(params["aspect"]).astype(np.float32)
        # 2. Each size its batches, in the order of the aspect ratio, shuffled within.
        rng = np.random.default_rng([self._seed & 2**63 - 1, number])
        order = np.argsort(self._fitting(aspects, drawn), kind="stable")
        ends = np.cumsum(self._shares) * self._size
        batches = [rng.permutation(part).reshape(-1, self._size) for part in np.split(order, ends[:-1])]
        every = [(size, batch) for size, part in enumerate(batches) for batch in range(len(part))]
        sequence = [every[place] for place in rng.permutation(len(every)).tolist()]
        # 3. What happens to each sample's image, which depends on its size.
        changed: list[Changed | None] = [None] * len(batches)
        ready = None
        with self._aside(stream):
            for size, part in enumerate(batches):
                if self._changes is not None and len(part):
                    changed[size] = self._changes.sample(states[part.ravel()], self.sizes[size])
            if stream is not None:
                ready = stream.record_event()
        # 4. The texts that are drawn, which may have fewer characters than were asked for.
        texts = np.array(self._engine.engine.strings(drawn), object)
        cut = int(((drawn >= 0).sum(axis=1) < (codes >= 0).sum(axis=1)).sum())
        self.drawn, self.cut = self.drawn + len(index), self.cut + cut
        return _Chunk(first, params, texts, aspects, batches, sequence, changed, ready, cut)

    @contextmanager
    def _aside(self, stream: Any = None) -> Iterator[Any]:
        """Let the GPU work in a stream of its own, `stream` or a new one, and give it, None on a CPU."""
        if not self._engine.on_gpu:
            yield None
            return
        with torch.cuda.device(self._engine.device):
            stream = stream or torch.cuda.Stream(self._engine.device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                yield stream
        stream.synchronize()  # this thread's own wait: what follows reads results, and training does not wait for it

    def _fitting(self, aspects: NDArray[np.float32], codes: NDArray[np.int16]) -> NDArray[np.float32]:
        """Return the aspect ratio by which each sample's size is chosen: its own, or what its text needs at least.

        Size number n is for those around n + 1, see `data.pipeline.resize`.
        """
        if len(self.sizes) == 1:
            return aspects
        repeats = ((codes[:, 1:] == codes[:, :-1]) & (codes[:, 1:] >= 0)).sum(axis=1)
        columns = COLUMNS_PER_CHARACTER * ((codes >= 0).sum(axis=1) + repeats)
        widths = np.array([width for _, width in self.sizes])
        needed = np.searchsorted(widths, columns).clip(max=len(widths) - 1)
        return np.maximum(aspects, np.where(needed > 0, needed + 1, 0)).astype(np.float32)

    def _probe(self, count: int) -> NDArray[np.int64]:
        """Return how many of a chunk's batches each size gets: the same wherever the same things are drawn."""
        if len(self.sizes) == 1:
            return np.array([count])
        engine = self._engine.engine
        params = engine.rows(_PROBE_SEED, np.arange(_PROBE))
        edges = np.arange(1, len(self.sizes)) + 0.5
        fitting = np.searchsorted(edges, self._fitting(params["aspect"], params.codes))
        wanted = np.bincount(fitting, minlength=len(self.sizes)) / _PROBE * count
        ends = np.rint(np.cumsum(wanted)).astype(np.int64)
        return np.diff(ends, prepend=0)


def _fetched(array: Any) -> NDArray[Any]:
    fetched: NDArray[Any] = array.cpu().numpy() if isinstance(array, torch.Tensor) else array
    return fetched
