"""Batches composed on the training device from those of several loaders: real and synthetic samples in one batch.

    real, synthetic = split_batch(256, [3, 1])  # 192 and 64 samples of each batch
    parts = [make_loader(real_plan, 8), SyntheticLoader(synthetic_plan, "cuda")]  # with these batch sizes
    loader = DeviceLoader(MixedLoader(parts, "cuda"), "cuda")

An epoch is one of the first part, each of its samples once. The other parts continue from batch to batch through
epochs of their own, whose last batches may be short. Where a part stands is arithmetic: batch `number` of epoch `epoch`
takes its batch number `epoch * len(mix) + number`, counted over its epochs. So resuming takes what it takes for every
loader, two integers, and a part may be of any kind, one whose images are born on the device included. Needs torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch

from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.loaders.plan import add
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.types import Batch, as_targets
from inkmill.errors import ConfigError


def split_batch(batch_size: int, weights: Sequence[float]) -> list[int]:
    """Return how many samples of each batch come from each part: as near to the weights as whole numbers can be.

    Raises:
        ConfigError: a part would get none.
    """
    ends = np.rint(np.cumsum(weights) / np.sum(weights) * batch_size).astype(int)
    sizes: list[int] = np.diff(ends, prepend=0).tolist()
    if min(sizes) < 1:
        raise ConfigError(f"weights {list(weights)} leave a part of a batch of {batch_size} without samples")
    return sizes


class MixedLoader(Loader):
    """Composes each batch of one batch from every part, on the device, already augmented.

    `Batch.index` counts through the parts' sources laid end to end.

    Args:
        parts: two loaders or more, closed together with this one. Their plans' batch sizes are their shares of a batch;
            image size, rank and number of ranks are the same.
        device: a torch device or its name.

    Raises:
        ConfigError: parts that do not fit together; images of several sizes, and a part after the first whose images
            cannot follow theirs (see Loader.follow).
    """

    def __init__(self, parts: Sequence[Loader], device: torch.device | str) -> None:
        _check(parts)
        first = parts[0].plan
        size = sum(part.plan.batch_size for part in parts)
        super().__init__(replace(first, batch_size=size, cache=CacheConfig()), parts[0].augment_on)
        self.memory = None
        self.workers = sum(part.workers for part in parts)
        self._parts = [_Part(DeviceLoader(part, device)) for part in parts]
        self._offsets = np.cumsum([0, *(len(part.plan.source) for part in parts)])
        for part in parts[1:] if first.bucket_widths is not None else ():
            part.follow(first.order())

    def __len__(self) -> int:
        """Batches in an epoch of the first part."""
        return len(self._parts[0].loader)

    @property
    def _defers_augmentation(self) -> bool:
        return False  # each part has its own

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        # 1. Bring each part to its position; one that stands there keeps what it has prefetched.
        for part in self._parts:
            part.seek(epoch * len(self) + first)
        # 2. Compose; a part that comes to the end of its epoch begins the next.
        for _ in range(first, len(self)):
            yield CollatedBatch(self._composed([part.next() for part in self._parts]), [], 0, 0, 0)

    def _composed(self, batches: list[Batch]) -> Batch:
        return Batch(
            images=torch.cat([_augmented(batch) for batch in batches]),
            widths=np.concatenate([batch.widths for batch in batches]),
            targets=as_targets(chain.from_iterable(batch.targets for batch in batches)),
            keys=list(chain.from_iterable(batch.keys for batch in batches)),
            index=np.concatenate([batch.index + start for batch, start in zip(batches, self._offsets, strict=False)]),
        )

    def _account(self, collated: CollatedBatch) -> None:
        """Count the batch, and show what the parts have counted so far."""
        super()._account(collated)
        every = [part.loader.stats for part in self._parts]
        stats = self.stats
        stats.left_out = sum(one.left_out for one in every)
        stats.cached = sum(one.cached for one in every)
        stats.damaged = sum(one.damaged for one in every)
        stats.regions = sum((one.regions for one in every), Counter())
        stats.stages = {}
        stats.skipped = {}
        for one in every:
            add(stats.stages, one.stages)
            for reason, keys in one.skipped.items():
                stats.skipped.setdefault(reason, []).extend(keys)
            stats.notes.extend(note for note in one.notes if note not in stats.notes)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer stands; of the parts, what their data are and which samples are bad."""
        return super().state_dict() | {"parts": [part.loader.state_dict() for part in self._parts]}

    def differences(self, state: dict[str, Any]) -> list[str]:
        """See Loader.differences."""
        found = super().differences(state)
        states = state.get("parts", [])
        if len(states) != len(self._parts):
            return [*found, f"it mixed {len(states) or 1} loaders and mixes {len(self._parts)}"]
        for number, (part, one) in enumerate(zip(self._parts, states, strict=True)):
            found += [f"of part {number}, {sentence}" for sentence in part.loader.differences(one)]
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Loader.load_state_dict."""
        super().load_state_dict(state)
        for part, one in zip(self._parts, state["parts"], strict=True):
            part.restore(one)

    def release(self) -> None:
        """See Loader.release."""
        for part in self._parts:
            part.restart()
            part.loader.release()

    def close(self) -> None:
        """Close the parts."""
        for part in self._parts:
            part.restart()
            part.loader.close()
        super().close()


class _Part:
    """A loader's batches, epoch after epoch, from any position on."""

    def __init__(self, loader: DeviceLoader) -> None:
        self.loader = loader
        self._batches: Iterator[Batch] | None = None
        self._position = 0

    def seek(self, position: int) -> None:
        """Make `next` return batch `position`, counted from the first of epoch 0."""
        if self._batches is not None and position == self._position:
            return
        epoch, number = divmod(position, len(self.loader))
        self.loader.load_state_dict(self.loader.state_dict() | {"epoch": epoch, "batches": number})
        self._batches = chain.from_iterable(repeat(self.loader))
        self._position = position

    def next(self) -> Batch:
        """Return the next batch."""
        assert self._batches is not None
        self._position += 1
        return next(self._batches)

    def restore(self, state: dict[str, Any]) -> None:
        """Take over which samples are bad; `seek` brings the loader to its position."""
        self.loader.load_state_dict(state)
        self._batches = None

    def restart(self) -> None:
        """Forget the iteration, whose files or processes are about to be closed."""
        self._batches = None


def _augmented(batch: Batch) -> torch.Tensor:
    images: torch.Tensor = batch.images
    if batch.augmentation is None:
        return images
    from inkmill.data.augment.gpu import apply_deferred

    return apply_deferred(images, batch.augmentation)


def _check(parts: Sequence[Loader]) -> None:
    """Refuse parts whose batches cannot be put together."""
    if len(parts) < 2:
        raise ConfigError("a mix needs two loaders or more: use the one loader as it is")
    plans = [part.plan for part in parts]
    if any(plan.resize.mode == "page" for plan in plans):
        raise ConfigError("whole pictures are mixed as one set: list them under dataset.train, with weights")
    if len({(plan.resize.height, plan.resize.width, plan.resize.channels) for plan in plans}) > 1:
        raise ConfigError("the loaders of a mix give images of different sizes: resize all to the model's input")
    if len({(plan.rank, plan.world_size) for plan in plans}) > 1:
        raise ConfigError("the loaders of a mix must load for the same rank")
