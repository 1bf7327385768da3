"""Parts of larger pictures on the training device: sampled, warped from packed memory, and augmented there.

The parts themselves are drawn on the CPU (see `windows`) and come along as four numbers each. The warp reads pictures
where they lie, in a batch's memory or among all pictures of the set; everything after it is what `torch_passes` does
to any batch. With the images comes the matrix by which the regions of each picture follow.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.gpu import MAX_COMPILATIONS, Blocks, choose_blocks
from inkmill.data.augment.page_warp import MOST_PLACES
from inkmill.data.augment.params import DeferredAugmentation
from inkmill.data.augment.random_numbers import epoch_key, keyed_states
from inkmill.data.augment.torch_passes import Constants, Rows, constants_on, run_later_passes, shrink_some

try:
    from inkmill.kernels.warp_pages import warp_pages as warp_kernel
except ImportError:  # Triton comes with torch where there are GPUs
    warp_kernel = None  # type: ignore[assignment]

_PIXELS_OF_PLACE, _NEARLY = 2.0, 1e-3


class Pages(NamedTuple):
    """Pictures on a device.

    Attributes:
        memory: uint8, in one dimension.
        headers: int64 (N, 4): first byte, rows and columns of each picture, and a number that is not looked at.
        channels: 1 or 3.
    """

    memory: Tensor
    headers: Tensor
    channels: int


class PageAugmenter:
    """Makes batches of parts of pictures on a device; draws what `Augmentation.sample` draws.

    Args:
        augmentation: what to sample; `for_windows`.
        batch_size: images of a full batch, for which passes are compiled; a shorter one is padded, and cut afterwards.
        size: height and width of the parts.
        device: where the pictures are.
        compiled: compile sampling and the passes after the warp; by default on CUDA only.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        batch_size: int,
        size: tuple[int, int],
        device: torch.device,
        compiled: bool | None = None,
    ) -> None:
        self._augmentation, self._batch_size, self._size, self._device = augmentation, batch_size, size, device
        self._compiled = device.type == "cuda" if compiled is None else compiled
        self._offsets = torch.from_numpy(augmentation.offsets.view(np.int64)).to(device)
        self._constants = constants_on(device)
        self._sample = torch.compile(self._sampled, dynamic=False) if self._compiled else self._sampled
        self._later = torch.compile(self._finished, dynamic=False) if self._compiled else self._finished

    def __call__(
        self,
        seed: int,
        epoch: int,
        index: NDArray[np.int64],
        pages: Pages,
        rows: NDArray[np.int64],
        window: NDArray[np.float64],
        resized: NDArray[np.float32],
    ) -> tuple[Tensor, Tensor]:
        """Return the images of a batch and their matrices, on a GPU not waited for.

        Args:
            seed, epoch: of the run.
            index: int64 (B,), the samples' positions, B <= batch_size.
            pages: where the pictures are.
            rows: int64 (B,), which of them.
            window: float64 (4, B), their parts.
            resized: float32 (B, 3, 3), from the pixels of the whole pictures to those of the kept ones.

        Returns:
            uint8 (B, H, W, C), and float32 (B, 3, 3) from the pixels of the whole pictures to those of the images.
        """
        count = len(index)
        if not count:
            shape = (0, *self._size, pages.channels)
            empty = torch.empty(shape, dtype=torch.uint8, device=self._device)
            return empty, torch.empty(0, 3, 3, device=self._device)
        # 1. A compiled pass is for one size of batch.
        places = np.arange(count) if not self._compiled else np.minimum(np.arange(self._batch_size), count - 1)
        index, rows, window, resized = index[places], rows[places], window[:, places], resized[places]
        # 2. Which images the expensive passes run on.
        key = epoch_key(seed, epoch)
        states, real = keyed_states(key, index.astype(np.uint64)), np.arange(len(places)) < count
        layout = self._augmentation.layout
        needed = {name: self._augmentation.rows_with(name, states) & real for name in layout.shares}
        fits, blocks = choose_blocks(needed, layout.shares, self._compiled)
        # 3. All numbers in two copies, then sampling, the warp, and the other passes.
        numbers = self._sent(np.concatenate([window.ravel(), resized.ravel().astype(np.float64)]))
        packed = self._sent(
            np.concatenate([key.view(np.int64), index, rows, *(b for b in blocks.values() if b is not None)])
        )
        current = torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=MAX_COMPILATIONS), current:
            size = len(places)
            on_device = packed[1 + 2 * size :]
            values, matrices, taps = self._sample(packed[:1], packed[1 : 1 + size], numbers)
            pixels = warp_pages(pages, packed[1 + size : 1 + 2 * size], values, taps, layout.start("space"), self._size)
            later = self._later if fits else self._finished
            images = later(pixels, values, _rows(blocks, on_device), self._constants)
        return images[:count], matrices[:count]

    def _sent(self, numbers: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(numbers)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _sampled(self, key: Tensor, index: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parameters (B, columns), the matrices (B, 3, 3) and the places a side (B,)."""
        count, (height, width) = len(index), self._size
        window, resized = numbers[: 4 * count].reshape(4, count), numbers[4 * count :].reshape(count, 3, 3)
        states = keyed_states(key, index)
        columns = self._augmentation.columns(torch, states, self._offsets, height, width, window)
        ones = torch.ones(count, device=self._device)
        values = torch.stack([ones * one if isinstance(one, float) else one.float() for one in columns], dim=1)
        start = self._augmentation.layout.start("space")
        space = values[:, start : start + 9].reshape(count, 3, 3)
        inverse, determinant = _inverse(space.double())
        matrices = (inverse @ resized).float()
        return values, matrices, _places_a_side(space.double(), determinant, height, width)

    def _finished(self, pixels: Tensor, values: Tensor, rows: Rows, constants: Constants) -> Tensor:
        layout = self._augmentation.layout
        # Resolution is lost in what the model sees, so after the warp here.
        if "shrink" in layout.passes:
            pixels = shrink_some(pixels.round().to(torch.uint8), values, rows, layout)
        return run_later_passes(pixels, values, rows, constants, layout)


def _rows(blocks: Blocks, packed: Tensor) -> dict[str, Tensor | None]:
    rows: dict[str, Tensor | None] = {}
    for name, block in blocks.items():
        rows[name] = None if block is None else packed[: len(block)]
        packed = packed[0 if block is None else len(block) :]
    return rows


def _inverse(m: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverses of (B, 3, 3) and their determinants: by cofactors, for torch's own waits for the GPU."""
    a, b, c, d, e, f, g, h, i = m.reshape(-1, 9).unbind(1)
    cofactors = [
        e * i - f * h, c * h - b * i, b * f - c * e,
        f * g - d * i, a * i - c * g, c * d - a * f,
        d * h - e * g, b * g - a * h, a * e - b * d,
    ]  # fmt: skip
    determinant = a * cofactors[0] + b * cofactors[3] + c * cofactors[6]
    return torch.stack(cofactors, dim=1).reshape(-1, 3, 3) / determinant[:, None, None], determinant


def _places_a_side(m: Tensor, determinant: Tensor, height: int, width: int) -> Tensor:
    """See page_warp.places_a_side: int32 (B,)."""
    w = (m[:, 2, 0] * (width - 1) / 2 + m[:, 2, 1] * (height - 1) / 2 + m[:, 2, 2]).abs().clamp(min=1e-6)
    pixels = (determinant.abs() / w**3).sqrt()
    return torch.ceil(pixels / _PIXELS_OF_PLACE - _NEARLY).clamp(1, MOST_PLACES).int()


def warp_pages(
    pages: Pages, index: Tensor, values: Tensor, places: Tensor, space: int, size: tuple[int, int]
) -> Tensor:
    """Fetch each pixel of the parts from its place in the pictures, bilinear, black outside.

    Args:
        pages: the pictures.
        index: int64 (B,), which of them.
        values: float32 (B, columns).
        places: int32 (B,), of how many places a side a pixel is the mean.
        space: first column of the matrices.
        size: height and width of the parts.

    Returns:
        Floats (B, H, W, C).
    """
    if pages.memory.is_cuda and warp_kernel is not None:
        return warp_kernel(pages.memory, pages.headers, index, values, places, space, size, pages.channels)
    height, width = size
    out = torch.empty((len(index), height, width, pages.channels), device=pages.memory.device)
    for row, (picture, count) in enumerate(zip(index.tolist(), places.tolist(), strict=True)):
        begin, rows, columns = pages.headers[picture, :3].tolist()
        page = pages.memory[begin : begin + rows * columns * pages.channels].reshape(rows, columns, pages.channels)
        out[row] = _warped(page.float(), values[row, space : space + 9], count, height, width)
    return out


def _warped(page: Tensor, m: Tensor, count: int, height: int, width: int) -> Tensor:
    """Warp one picture, float (h, w, C), to (height, width, C); the reference of the kernel."""
    rows, columns = page.shape[:2]
    total = torch.zeros((height, width, page.shape[2]), device=page.device)
    for place in range(count * count):
        # 1. Where the place lies between the output's pixels, and what it shows.
        to_x = torch.arange(width, device=page.device)[None, :] + (place % count + 0.5) / count - 0.5
        to_y = torch.arange(height, device=page.device)[:, None] + (place // count + 0.5) / count - 0.5
        w = m[6] * to_x + m[7] * to_y + m[8]
        x = ((m[0] * to_x + m[1] * to_y + m[2]) / w).clamp(-2, columns + 1)
        y = ((m[3] * to_x + m[4] * to_y + m[5]) / w).clamp(-2, rows + 1)
        # 2. The four pixels around it; what lies outside is black.
        left, top = x.floor(), y.floor()
        for at_x, share_x in ((left, 1 - (x - left)), (left + 1, x - left)):
            for at_y, share_y in ((top, 1 - (y - top)), (top + 1, y - top)):
                seen = (at_x >= 0) & (at_x < columns) & (at_y >= 0) & (at_y < rows)
                pixels = page[at_y.clamp(0, rows - 1).long(), at_x.clamp(0, columns - 1).long()]
                total += (share_x * share_y * seen)[..., None] * pixels
    return total / count**2


_augmenters: dict[tuple[object, ...], PageAugmenter] = {}


def apply_deferred_pages(pages: Pages, deferred: DeferredAugmentation) -> tuple[Tensor, Tensor]:
    """Do what is left to do to a batch of packed pictures.

    Args:
        pages: of the batch, in its order.
        deferred: the batch's, with its windows and matrices.

    Returns:
        See PageAugmenter.
    """
    assert deferred.window is not None
    assert deferred.resized is not None
    size = deferred.height, deferred.width
    key = (deferred.augmentation.identity, deferred.batch_size, size, pages.channels, pages.memory.device)
    if key not in _augmenters:
        _augmenters.clear()  # a run has one; the one before would keep its memory
        _augmenters[key] = PageAugmenter(deferred.augmentation, deferred.batch_size, size, pages.memory.device)
    rows, state = np.arange(len(deferred)), (deferred.seed, deferred.epoch, deferred.index)
    return _augmenters[key](*state, pages, rows, deferred.window, deferred.resized)
