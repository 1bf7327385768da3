"""What every loader does alike: epochs, position, state, counting.

A loader is an iterable of one epoch. A new `for` loop is a new epoch, also after leaving the last one early; right
after `load_state_dict` it resumes where the state was taken instead. The state counts batches handed over, not those
prefetched, so it fits on a few lines and is exact in the middle of an epoch, with any number of workers.

A loader of another kind (DALI, say) derives from `Loader` and writes `_produce`: the batches of one epoch from a given
one on, in order. What it can do stands in `LOADERS`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.images import HostMemory, RaggedImages
from inkmill.data.loaders.plan import LoadPlan, Stats, add
from inkmill.data.pipeline.cache import ImageCache, open_cache
from inkmill.data.pipeline.order import BatchOrder
from inkmill.data.pipeline.pages import page_bytes
from inkmill.data.types import Batch
from inkmill.errors import ConfigError, DataError

if TYPE_CHECKING:
    from inkmill.data.augment.params import DeferredAugmentation
    from inkmill.data.loaders import AugmentOn
    from inkmill.data.loaders.device import GpuIdle

STATE_VERSION = 2

_Produced = Generator[CollatedBatch, None, None]

_MEANING = {
    "data": "the digest of the data's keys",
    "samples": "the number of samples",
    "seed": "the seed",
    "shuffle": "shuffle",
    "global_batch": "the global batch (batch_size x ranks)",
    "buckets": "the digest of the bucket widths",
}


class Loader(ABC):
    """An iterable of batches; see the head of this file.

    Attributes:
        plan: what is loaded.
        augment_on: who augments; where "gpu", `Batch.augmentation` says what is left to do.
        stats: what was done so far.
        memory: the host memory that batches lie in; None where images are born on the training device.
        gpu_idle: of a loader that queues work on a GPU itself: tells whoever times it when that begins.
    """

    workers = 0
    """How many batches are assembled at a time beside the consumer's work; 0: in the consumer's own time."""

    def __init__(self, plan: LoadPlan, augment_on: AugmentOn = "cpu") -> None:
        if augment_on == "gpu" and plan.pipeline is not None:
            raise ConfigError(
                "an Albumentations pipeline runs on the CPU, where batches are made: use augment_on=auto or cpu,"
                " and another tier than cache=gpu"
            )
        self.plan = plan
        self.augment_on: AugmentOn = augment_on
        self.stats = Stats()
        self.memory: HostMemory | None = HostMemory(plan)
        self.gpu_idle: GpuIdle | None = None
        self._order = plan.order()
        # The position: `_batches` of `_epoch` were handed over; at the start, the next iteration begins right there.
        self._epoch = 0
        self._batches = 0
        self._at_start = True
        self._iteration = 0
        self._blocked: dict[str, int] = {}  # key -> index of the samples found bad
        self._blocked_mask: NDArray[Any] = np.zeros(len(plan.source), np.uint8)
        self._cache: ImageCache | None = open_cache(
            plan.cache, plan.source, plan.resize, plan.bucket_widths, page_bytes(plan.resize, plan.sizes)
        )
        if self._cache is not None:
            self.stats.notes.extend(self._cache.notes)

    def __len__(self) -> int:
        """Batches in an epoch, the same for every rank."""
        return len(self._order)

    @property
    def epoch(self) -> int:
        """The epoch that is, or was last, handed over."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin epoch `epoch`; if a state of that epoch was just loaded, its position stays."""
        if epoch != self._epoch or not self._at_start:
            self._epoch, self._batches, self._at_start = epoch, 0, True

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches of one epoch, which are the consumer's to keep."""
        for batch in self.views():
            if isinstance(batch.images, RaggedImages):
                batch = replace(batch, images=batch.images.kept())
            elif self.memory is not None and self.memory.reused:
                batch = replace(batch, images=batch.images.copy())
            yield batch

    def views(self) -> Iterator[Batch]:
        """Like iterating, but images may be views, each valid until this iteration asks for the next batch but one.

        A new iteration may write anywhere. Where `memory.ragged` is set, images may be `RaggedImages`.
        """
        self._begin()
        iteration = self._iteration
        produced = self._produce(self._epoch, self._batches)
        try:
            while True:
                # 1. Wait for the next batch, on the clock.
                asked = perf_counter()
                collated = next(produced, None)
                self.stats.waited_s += perf_counter() - asked
                if collated is None:
                    return
                # 2. Count it, and the bad samples it was assembled without.
                self._account(collated)
                # 3. Say what the training device is left to do.
                if self._defers_augmentation and (collated.batch.sizes is None or collated.batch.window is not None):
                    collated.batch.augmentation = self._deferred(collated.batch)
                # 4. Hand it over; meanwhile another iteration may have begun, whose batches would mix with these.
                yield collated.batch
                if self._iteration != iteration:
                    raise RuntimeError("this loader was iterated again meanwhile: one iteration at a time")
        finally:
            produced.close()

    def _begin(self) -> None:
        if not self._at_start:
            self._epoch, self._batches = self._epoch + 1, 0
        self._at_start = False
        self._iteration += 1
        # Only here, never in the middle of an epoch: which batches are made ahead must not matter.
        self._blocked_mask[list(self._blocked.values())] = 1

    def follow(self, order: BatchOrder) -> None:
        """Give batches the image sizes of those of `order`, and an epoch as many batches, to be mixed with them.

        Raises:
            ConfigError: its images have the sizes that they have.
        """
        raise ConfigError(
            "images of several sizes can only be mixed with synthetic ones: use input_resize=pad or stretch"
        )

    @property
    def _defers_augmentation(self) -> bool:
        return self.augment_on == "gpu" and self.plan.numbers is not None

    def _deferred(self, batch: Batch) -> DeferredAugmentation:
        # Imported here: it brings more along than most loaders need.
        from inkmill.data.augment.params import DeferredAugmentation

        plan, (height, width) = self.plan, batch.images.shape[1:3]
        assert plan.numbers is not None
        return DeferredAugmentation(
            plan.numbers,
            plan.seed,
            self._epoch,
            batch.index,
            height,
            width,
            plan.largest_batch,
            batch.window,
            None if batch.window is None else batch.matrix,
        )

    @abstractmethod
    def _produce(self, epoch: int, first: int) -> _Produced:
        """Yield the batches of an epoch from number `first` on, in order; closing it early leaves nothing running."""

    def _account(self, collated: CollatedBatch) -> None:
        stats = self.stats
        self._batches += 1
        stats.batches += 1
        stats.images += len(collated.batch)
        stats.left_out += collated.left_out
        stats.cached += collated.cached
        stats.damaged += collated.damaged
        stats.regions.update(collated.regions)
        add(stats.stages, collated.stages)
        for index, key, reason in collated.skipped:
            if key not in self._blocked:
                self._blocked[key] = index
                self._quarantine(index, reason)
                stats.skipped.setdefault(reason, []).append(key)
        samples, limit = len(self.plan.source), self.plan.max_bad
        if collated.skipped and len(self._blocked) > max(1, limit * samples):
            key, reason = collated.skipped[-1][1:]
            raise DataError(
                f"{len(self._blocked)} of {samples} samples of {self.plan.source.name} cannot be loaded, more than the"
                f" {limit:.1%} allowed; the last was {key!r}: {reason} (`inkmill check` lists them all)"
            )

    def _quarantine(self, index: int, reason: str) -> None:
        folder = self.plan.quarantine
        if self.plan.on_bad_sample != "quarantine" or folder is None:
            return
        # Imported here: it brings all sources along and is hardly ever needed.
        from inkmill.data.jobs.rejects import quarantine

        quarantine(folder, self.plan.source, index, reason)
        note = f"bad samples are copied to {folder}"
        if note not in self.stats.notes:
            self.stats.notes.append(note)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer stands, as plain values that JSON holds."""
        return {
            "version": STATE_VERSION,
            "epoch": self._epoch,
            "batches": self._batches,
            "blocked": dict(self._blocked),
            **self._identity,
        }

    @cached_property
    def _identity(self) -> dict[str, Any]:
        widths = self.plan.bucket_widths
        return {
            "data": self.plan.source.identity,
            "samples": len(self.plan.source),
            "seed": self.plan.seed,
            "shuffle": self.plan.shuffle,
            "global_batch": self._order.global_batch,
            "buckets": "" if widths is None else hashlib.sha256(np.asarray(widths, "<i4").tobytes()).hexdigest()[:16],
        }

    def differences(self, state: dict[str, Any]) -> list[str]:
        """Return in words why the order of the samples is another one than where `state` was taken; empty: it is not.

        Raises:
            DataError: it is no state of a loader.
        """
        if isinstance(state, dict) and state.get("version") == 1:
            return ["it was written by an earlier inkmill"]
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise DataError(f"this is not the state of a loader (version {STATE_VERSION}): {str(state)[:80]}")
        return [
            f"{_MEANING[name]} was {state.get(name)!r} and is {now!r}"
            for name, now in self._identity.items()
            if state.get(name) != now
        ]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration resume where `state` was taken, also with other workers or another number of ranks.

        Raises:
            DataError: it is no such state, or the order of the samples would be another one; says what differs.
        """
        if differences := self.differences(state):
            raise DataError(
                f"the loader of {self.plan.source.name} cannot resume in the middle of an epoch: "
                f"{'; '.join(differences)} (restore it, or resume from a checkpoint that was taken after a whole epoch)"
            )
        self._epoch, self._batches, self._at_start = int(state["epoch"]), int(state["batches"]), True
        if self._batches >= len(self):
            self._epoch, self._batches = self._epoch + 1, 0
        self._blocked = {str(key): int(index) for key, index in state["blocked"].items()}
        self._blocked_mask[:] = 0

    def release(self) -> None:
        """Close the data's files, wherever they are open, which ends an iteration; the next one opens them again."""
        self.close()
        self.plan.source.release()

    def close(self) -> None:
        """Give back processes, threads and memory; iterating again takes them again."""
        if self._cache is not None:
            self._cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
