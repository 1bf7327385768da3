"""Augmentation of pictures that a device holds: fetching a batch, drawing its numbers and applying them is one pass.

To the device goes a handful of integers for each image: which one it is, and which images to blur and to compress. The
last two are found on the CPU, by tossing just their coins, because the number of rows must be known before the pass
runs. Everything else is drawn where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.augment import spec as ops
from inkmill.data.augment.apply_torch import choose_rows, packed_for, passes_on
from inkmill.data.augment.draw import Augmentation
from inkmill.data.augment.passes_torch import Constants, change_images, constants_on
from inkmill.data.augment.random_numbers import epoch_key, keyed_states
from inkmill.data.augment.recorded_torch import RecordedPass

_Pass = Callable[..., tuple[Tensor, Tensor]]


class HeldAugmenter:
    """Makes augmented batches of pictures on a device.

    What is drawn is what `Augmentation.draw` draws; the table's numbers differ in the last bit at most.

    Args:
        images: uint8 (N, H, W, C), RGB or gray.
        augmentation: what to draw.
        seed: of the run.
        batch_size: rows of a compiled pass; a shorter batch is filled up and cut.
        compiled: compile the pass (tens of seconds at the first batch); by default on CUDA only.
    """

    def __init__(
        self,
        images: Tensor,
        augmentation: Augmentation,
        seed: int,
        batch_size: int,
        compiled: bool | None = None,
    ) -> None:
        self._images, self._augmentation, self._seed = images, augmentation, seed
        self._batch_size = batch_size
        self._compiled = images.is_cuda if compiled is None else compiled
        self._steps = torch.from_numpy(augmentation.steps.view(np.int64)).to(images.device)
        self._constants = constants_on(images.device)
        self._fast: _Pass = torch.compile(self._run, dynamic=False, fullgraph=True) if self._compiled else self._run
        self._recorded: RecordedPass | None = None

    def __call__(self, epoch: int, index: NDArray[np.int64]) -> Tensor:
        """Return the augmented pictures of a batch, not waited for.

        Args:
            epoch: the epoch; another one gives other changes.
            index: int64 (B,), the samples' positions among the images, B <= batch_size.

        Returns:
            uint8 (B, H, W, C) on the images' device.
        """
        count, layout = len(index), self._augmentation.layout
        if not count or not layout.columns:
            return self._images[torch.from_numpy(index).to(self._images.device)]
        if self._compiled and count < self._batch_size:
            index = np.concatenate([index, np.repeat(index[:1], self._batch_size - count)])
        key = epoch_key(self._seed, epoch)
        needed = self._needed(keyed_states(key, index.astype(np.uint64)), count)
        compiled, blocks = choose_rows(needed, layout, len(index), self._compiled)
        packed, pieces = packed_for([key.view(np.int64), index, *blocks], np.int64, self._images.device)
        with passes_on(self._images.device):
            if compiled and self._images.is_cuda:
                return self._replayed(packed, pieces)[:count]
            run: _Pass = self._fast if compiled else self._run
            images, _ = run(self._images, *pieces(packed.to(self._images.device)), self._steps, self._constants)
        return images[:count]

    def close(self) -> None:
        """Let go of the pictures and of what was recorded: a compiled method would hold them until all is collected."""
        del self._images, self._fast
        self._recorded = None

    def _replayed(self, packed: Tensor, pieces: Callable[[Tensor], list[Any]]) -> Tensor:
        if self._recorded is None:

            def run(packed: Tensor) -> Tensor:
                return self._fast(self._images, *pieces(packed), self._steps, self._constants)[0]

            self._recorded = RecordedPass(run, (packed,), self._images.device)
        return self._recorded(packed)

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
        # Returned too, so that the compiler puts the table into memory rather than drawing anew for each pixel.
        table = torch.stack([ones * column if isinstance(column, float) else column.float() for column in columns])
        return change_images(images, index, table.T, blur_rows, jpeg_rows, constants, self._augmentation.layout), table
