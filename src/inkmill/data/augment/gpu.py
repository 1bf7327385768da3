"""Augmentation on the device that trains: sampling a batch's parameters and applying them is one compiled pass there.

To the device goes a handful of integers for each image: which one it is, and which images the expensive passes run on.
These are found on the CPU, from the ops' probabilities alone, because the size of their blocks must be known before the
pass runs. Everything else is sampled where it is used. The images are a batch that a loader brought, or all images of
a data set, held on the device and fetched in the same pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.params import DeferredAugmentation
from inkmill.data.augment.random_numbers import epoch_key, keyed_states
from inkmill.data.augment.torch_passes import Constants, Rows, apply_torch, constants_on, run_passes
from inkmill.kernels.graph import CudaGraph

MAX_COMPILATIONS = 64
"""Batch sizes x bucket widths x specs; torch's own limit of 8 falls back silently."""

Blocks = dict[str, NDArray[np.int64] | None]
"""For each expensive pass the images of a batch that it runs on, int64; None for all."""

_augmenters: dict[tuple[Any, ...], DeviceAugmenter] = {}
"""The last used last."""


def apply_deferred(images: Tensor, deferred: DeferredAugmentation) -> Tensor:
    """Augment a batch whose augmentation the loader left to the device: on a GPU in one compiled pass that samples.

    Args:
        images: uint8 (B, H, W, C), RGB or gray, on any device; not changed.
        deferred: the batch's.

    Returns:
        uint8 (B, H, W, C) on the same device; on a GPU not waited for.

    Raises:
        ValueError: batch and augmentation do not belong together.
    """
    if tuple(images.shape[:3]) != (expected := (len(deferred), deferred.height, deferred.width)):
        raise ValueError(f"the augmentation is of a batch of {expected}, the images are {tuple(images.shape)}")
    if not len(deferred):
        return images
    if not images.is_cuda:
        return apply_torch(images, deferred.params)
    # Free widths give other shapes from batch to batch: each has its own compiled pass, the last used are kept.
    key = (deferred.augmentation.identity, deferred.batch_size, *images.shape[1:], images.device)
    augmenter = _augmenters.pop(key, None)
    if augmenter is None:
        augmenter = DeviceAugmenter(deferred.augmentation, deferred.batch_size, images.device)
    _augmenters[key] = augmenter
    if len(_augmenters) > MAX_COMPILATIONS:  # each has memory of its own on the GPU
        _augmenters.pop(next(iter(_augmenters))).close()
    return augmenter(deferred.seed, deferred.epoch, deferred.index, images)


class DeviceAugmenter:
    """Makes augmented batches of images on a device.

    What is sampled is what `Augmentation.sample` samples; the numbers differ in the last bit at most.

    Args:
        augmentation: what to sample.
        batch_size: images of a compiled pass; a shorter batch is padded, and cut afterwards.
        device: where the images are.
        held: uint8 (N, H, W, C), RGB or gray, the images of all samples; None where each batch brings its own.
        compiled: compile the pass (3 to 15 seconds at the first batch); by default on CUDA only.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        batch_size: int,
        device: torch.device,
        held: Tensor | None = None,
        compiled: bool | None = None,
    ) -> None:
        self._augmentation = augmentation
        self._batch_size = batch_size
        self._device = device
        self._held = held
        self._compiled = device.type == "cuda" if compiled is None else compiled
        self._offsets = torch.from_numpy(augmentation.offsets.view(np.int64)).to(device)
        self._constants = constants_on(device)
        self._fast = torch.compile(self._sample_and_run, dynamic=False) if self._compiled else self._sample_and_run
        self._graph: CudaGraph | None = None

    def __call__(self, seed: int, epoch: int, index: NDArray[np.int64], images: Tensor | None = None) -> Tensor:
        """Return the augmented images of a batch, on a GPU not waited for.

        Args:
            seed: of the run.
            epoch: the epoch; another one gives other parameters.
            index: int64 (B,), the samples' positions, B <= batch_size.
            images: uint8 (B, H, W, C) on the device, their images, where none are held.

        Returns:
            uint8 (B, H, W, C) on the device.

        Raises:
            ValueError: there are not as many images as samples.
        """
        count = len(index)
        if images is not None and len(images) != count:
            raise ValueError(f"{len(images)} images for {count} samples")
        if not count or not self._augmentation.layout.passes:
            return images if images is not None else self._fetch(index)
        # 1. A compiled pass is for one size of batch.
        if self._compiled and count < self._batch_size:
            index, images = self._padded(index, images)
        # 2. Which images the expensive passes run on; more than a block holds need a pass that is not compiled.
        key = epoch_key(seed, epoch)
        needed = self._needed(keyed_states(key, index.astype(np.uint64)), count)
        fits, blocks = choose_blocks(needed, self._augmentation.layout.shares, self._compiled)
        # 3. All numbers in one copy, the pass, and the padding cut away.
        packed = self._packed(key.view(np.int64), index, blocks)
        with self._settings():
            if fits and self._device.type == "cuda":
                return self._replay(packed, blocks, images)[:count]
            run = self._fast if fits else self._sample_and_run
            return self._run(run, packed.to(self._device), blocks, images)[:count]

    def close(self) -> None:
        """Release the images and the recorded graph: a compiled method would hold them until all is collected."""
        del self._held, self._fast
        self._graph = None

    def _fetch(self, index: NDArray[np.int64]) -> Tensor:
        assert self._held is not None
        return self._held[torch.from_numpy(index).to(self._device)]

    def _padded(self, index: NDArray[np.int64], images: Tensor | None) -> tuple[NDArray[np.int64], Tensor | None]:
        """Repeat the first image until the batch is a full one."""
        missing = self._batch_size - len(index)
        index = np.concatenate([index, np.repeat(index[:1], missing)])
        if images is not None:
            images = torch.cat([images, images[:1].expand(missing, -1, -1, -1)])
        return index, images

    def _needed(self, states: NDArray[np.uint64], count: int) -> dict[str, NDArray[np.bool_]]:
        """Return for each expensive pass which images need it, none beyond the first `count`.

        Images that pad a batch repeat its first: were that one needed, they might overflow the block.
        """
        real = np.arange(len(states)) < count
        return {name: self._augmentation.rows_with(name, states) & real for name in self._augmentation.layout.shares}

    def _packed(self, key: NDArray[np.int64], index: NDArray[np.int64], blocks: Blocks) -> Tensor:
        """Return all numbers of a batch as one int64 tensor that the device can fetch by itself."""
        parts = [key, index, *(block for block in blocks.values() if block is not None)]
        packed = torch.empty(sum(map(len, parts)), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        # Filled through NumPy: torch's own copy wakes all CPU threads, which costs more than the pass on the GPU.
        np.concatenate(parts, out=packed.numpy())
        return packed

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """What passes run in: no gradients, room for their compilations, and their device current, for Triton."""
        current = torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=MAX_COMPILATIONS), current:
            yield

    def _replay(self, packed: Tensor, blocks: Blocks, images: Tensor | None) -> Tensor:
        inputs = (packed,) if images is None else (packed, images)
        if self._graph is None:

            def run(packed: Tensor, images: Tensor | None = None) -> tuple[Tensor]:
                return (self._run(self._fast, packed, blocks, images),)  # of the blocks only sizes, always the same

            self._graph = CudaGraph(run, inputs, self._device)
        return self._graph(*inputs)[0]

    def _run(
        self, run: Callable[..., tuple[Tensor, Tensor]], packed: Tensor, blocks: Blocks, images: Tensor | None
    ) -> Tensor:
        """Run the pass on numbers that are on the device; `blocks` says how they are packed."""
        in_blocks = sum(len(block) for block in blocks.values() if block is not None)
        key, index, packed_blocks = torch.split(packed, [1, len(packed) - 1 - in_blocks, in_blocks])
        rows: dict[str, Tensor | None] = {}
        for name, block in blocks.items():
            rows[name] = None if block is None else packed_blocks[: len(block)]
            packed_blocks = packed_blocks[0 if block is None else len(block) :]
        return run(self._held if images is None else images, key, index, rows, self._offsets, self._constants)[0]

    def _sample_and_run(
        self, images: Tensor, key: Tensor, index: Tensor, rows: Rows, offsets: Tensor, constants: Constants
    ) -> tuple[Tensor, Tensor]:
        height, width = images.shape[1:3]
        columns = self._augmentation.columns(torch, keyed_states(key, index), offsets, height, width)
        ones = torch.ones(len(index), device=images.device)
        where = torch.arange(len(index), device=images.device) if self._held is None else index
        # Returned too, so that the compiler writes the values to memory rather than sampling again for each pixel.
        values = torch.stack([ones * column if isinstance(column, float) else column.float() for column in columns])
        return run_passes(images, where, values.T, rows, constants, self._augmentation.layout), values


def choose_blocks(
    needed: dict[str, NDArray[np.bool_]], shares: Mapping[str, float], compiled: bool
) -> tuple[bool, Blocks]:
    """Choose the images of a batch that expensive passes run on.

    Args:
        needed: for each pass, bool (B,) of the images that need it.
        shares: for each pass, an upper bound of the probability that an image needs it.
        compiled: whether blocks must have the size of every other batch's.

    Returns:
        Whether they have it (else the pass must run uncompiled); for each pass int64 rows, or None for all.
    """
    # A block is filled up with images that do not need the pass; it does nothing to them.
    counts = {name: int(np.count_nonzero(rows)) for name, rows in needed.items()}
    sizes = {name: block_size(len(rows), shares[name]) for name, rows in needed.items()}
    fits = compiled and all(counts[name] <= sizes[name] for name in needed)
    chosen = sizes if fits else counts
    return fits, {name: _block(rows, chosen[name]) for name, rows in needed.items()}


def block_size(count: int, share: float) -> int:
    """Return how many of `count` images get an expensive pass: nearly always enough (4 sigma), the same each time.

    Another number would be another compilation.
    """
    likely = count * share + 4 * math.sqrt(count * share * (1 - share))
    return min(count, 32 * math.ceil(likely / 32))


def _block(needed: NDArray[np.bool_], size: int) -> NDArray[np.int64] | None:
    """Return `size` images with all the needed ones among them, or None where these are all images."""
    if size >= len(needed):
        return None
    rows = np.flatnonzero(needed)
    return np.concatenate([rows, np.flatnonzero(~needed)[: size - len(rows)]])
