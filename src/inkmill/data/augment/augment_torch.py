"""Augmentation drawn on the device: drawing a batch's numbers and applying them is one pass there.

To the device goes a handful of integers for each image: which one it is, and which images to blur and to compress. The
last two are found on the CPU, by tossing just their coins, because the number of rows must be known before the pass
runs. Everything else is drawn where it is used. The pictures are a batch that a loader brought, or are held on the
device, all of a set, and fetched in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.augment import spec as ops
from inkmill.data.augment.changes import DeferredAugmentation
from inkmill.data.augment.draw import Augmentation
from inkmill.data.augment.engine_torch import Constants, change_images, constants_on
from inkmill.data.augment.random_numbers import epoch_key, keyed_states
from inkmill.data.augment.recorded_torch import RecordedPass
from inkmill.data.augment.table_torch import MAX_COMPILATIONS, apply_torch, choose_rows, packed_for, passes_on

_Run = Callable[..., tuple[Tensor, Tensor]]

_passes: dict[tuple[Any, ...], DrawingPass] = {}
"""The last used last."""


def apply_deferred(images: Tensor, changes: DeferredAugmentation) -> Tensor:
    """Do to a batch what a loader left to be done: on a GPU in one compiled pass that draws, on a CPU by its table.

    Args:
        images: uint8 (B, H, W, C), RGB or gray, on any device; not changed.
        changes: the batch's.

    Returns:
        uint8 (B, H, W, C) on the same device; not waited for.

    Raises:
        ValueError: batch and changes do not belong together.
    """
    if tuple(images.shape[:3]) != (expected := (len(changes), changes.height, changes.width)):
        raise ValueError(f"the changes are those of a batch of {expected}, the images are {tuple(images.shape)}")
    if not len(changes):
        return images
    if not images.is_cuda:
        return apply_torch(images, changes.table)
    key = (changes.augmentation.identity, changes.batch_size, *images.shape[1:], images.device)
    drawing = _passes.pop(key, None) or DrawingPass(changes.augmentation, changes.batch_size, images.device)
    _passes[key] = drawing
    if len(_passes) > MAX_COMPILATIONS:  # each has memory of its own on the GPU
        _passes.pop(next(iter(_passes))).close()
    return drawing(changes.seed, changes.epoch, changes.index, images)


class DrawingPass:
    """Makes augmented batches of pictures on a device.

    What is drawn is what `Augmentation.draw` draws; the table's numbers differ in the last bit at most.

    Args:
        augmentation: what to draw.
        batch_size: rows of a compiled pass; a shorter batch is filled up and cut.
        device: where the pictures are.
        held: uint8 (N, H, W, C), RGB or gray, the pictures of all samples; None where each batch brings its own.
        compiled: compile the pass (tens of seconds at the first batch); by default on CUDA only.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        batch_size: int,
        device: torch.device,
        held: Tensor | None = None,
        compiled: bool | None = None,
    ) -> None:
        self._augmentation, self._batch_size, self._device, self._held = augmentation, batch_size, device, held
        self._compiled = device.type == "cuda" if compiled is None else compiled
        self._steps = torch.from_numpy(augmentation.steps.view(np.int64)).to(device)
        self._constants = constants_on(device)
        self._fast: _Run = torch.compile(self._run, dynamic=False) if self._compiled else self._run
        self._recorded: RecordedPass | None = None

    def __call__(self, seed: int, epoch: int, index: NDArray[np.int64], images: Tensor | None = None) -> Tensor:
        """Return the augmented pictures of a batch, not waited for.

        Args:
            seed: of the run.
            epoch: the epoch; another one gives other changes.
            index: int64 (B,), the samples' positions, B <= batch_size.
            images: uint8 (B, H, W, C) on the device, their pictures, where none are held.

        Returns:
            uint8 (B, H, W, C) on the device.

        Raises:
            ValueError: there are not as many pictures as samples.
        """
        count, layout = len(index), self._augmentation.layout
        if images is not None and len(images) != count:
            raise ValueError(f"{len(images)} pictures for {count} samples")
        if not count or not layout.columns:
            return images if images is not None else self._of_held(index)
        if self._compiled and count < self._batch_size:
            index, images = self._filled_up(index, images)
        key = epoch_key(seed, epoch)
        needed = self._needed(keyed_states(key, index.astype(np.uint64)), count)
        compiled, blocks = choose_rows(needed, layout, len(index), self._compiled)
        packed, pieces = packed_for([key.view(np.int64), index, *blocks], np.int64, self._device)
        with passes_on(self._device):
            if compiled and self._device.type == "cuda":
                return self._replayed(packed, pieces, images)[:count]
            changed = self._changed(self._fast if compiled else self._run, images, pieces(packed.to(self._device)))
        return changed[:count]

    def close(self) -> None:
        """Let go of the pictures and of what was recorded: a compiled method would hold them until all is collected."""
        del self._held, self._fast
        self._recorded = None

    def _of_held(self, index: NDArray[np.int64]) -> Tensor:
        assert self._held is not None
        return self._held[torch.from_numpy(index).to(self._device)]

    def _filled_up(self, index: NDArray[np.int64], images: Tensor | None) -> tuple[NDArray[np.int64], Tensor | None]:
        """Repeat the first row until the batch is a full one."""
        missing = self._batch_size - len(index)
        index = np.concatenate([index, np.repeat(index[:1], missing)])
        if images is not None:
            images = torch.cat([images, images[:1].expand(missing, -1, -1, -1)])
        return index, images

    def _replayed(self, packed: Tensor, pieces: Callable[[Tensor], list[Any]], images: Tensor | None) -> Tensor:
        inputs = (packed,) if images is None else (packed, images)
        if self._recorded is None:

            def run(packed: Tensor, images: Tensor | None = None) -> Tensor:
                return self._changed(self._fast, images, pieces(packed))

            self._recorded = RecordedPass(run, inputs, self._device)
        return self._recorded(*inputs)

    def _changed(self, run: _Run, images: Tensor | None, pieces: list[Any]) -> Tensor:
        return run(self._held if images is None else images, *pieces, self._steps, self._constants)[0]

    def _needed(self, states: NDArray[np.uint64], count: int) -> list[NDArray[np.bool_] | None]:
        """Return which rows to blur and to compress, none beyond the first `count`; None where the spec has no such op.

        Rows that fill a batch up repeat its first: were that one needed, they might overflow the block.
        """
        layout = self._augmentation.layout
        needed: list[NDArray[np.bool_] | None] = []
        for kind, has in ((ops.Blur, layout.blur_radius > 0), (ops.Jpeg, layout.jpeg)):
            rows = self._augmentation.rows_with(kind, states) if has else None
            needed.append(None if rows is None else rows & (np.arange(len(states)) < count))
        return needed

    def _run(
        self,
        images: Tensor,
        key: Tensor,
        index: Tensor,
        blur_rows: Tensor | None,
        jpeg_rows: Tensor | None,
        steps: Tensor,
        constants: Constants,
    ) -> tuple[Tensor, Tensor]:
        height, width = images.shape[1:3]
        columns = self._augmentation.columns(torch, keyed_states(key, index), steps, height, width)
        ones = torch.ones(len(index), device=images.device)
        where = torch.arange(len(index), device=images.device) if self._held is None else index
        # Returned too, so that the compiler puts the table into memory rather than drawing anew for each pixel.
        table = torch.stack([ones * column if isinstance(column, float) else column.float() for column in columns])
        return change_images(images, where, table.T, blur_rows, jpeg_rows, constants, self._augmentation.layout), table
