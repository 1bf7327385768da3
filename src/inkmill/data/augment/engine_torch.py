"""What the torch engines do to pixels, from a table's numbers on the device.

Written for `torch.compile`: shapes and passes are fixed by the table's layout, so a spec needs one compilation for each
size of batch. Fetching pixels from their places, colour and noise, and cut-outs are one pass each over the whole batch.
Before colour comes blur, along the lines and then along the columns; after noise JPEG: the 8x8 cosine transform as one
matrix product, with libjpeg's tables, chroma at half size as encoders do by default. These two run on the rows that
need them, gathered into a block whose size the spec's probabilities give, so it stays the same; whatever comes next
reads each row from where it lies. On a GPU all but JPEG are kernels of their own (passes_triton). Between the passes a
pixel takes two bytes there, and from colour on one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.augment import passes_torch
from inkmill.data.augment.jpeg_torch import cosine_transform, jpeg_marks, quantisation_steps
from inkmill.data.augment.random_numbers import noise_ring
from inkmill.data.augment.table import ParamLayout

try:  # it comes with torch where there are GPUs, except on Windows
    from inkmill.kernels import passes as passes_triton
except ImportError:
    passes_triton = None  # type: ignore[assignment]

Constants = tuple[Tensor, Tensor, Tensor]


def change_images(
    images: Tensor,
    index: Tensor,
    values: Tensor,
    blur_rows: Tensor | None,
    jpeg_rows: Tensor | None,
    constants: Constants,
    layout: ParamLayout,
) -> Tensor:
    """Apply a table's numbers.

    Args:
        images: uint8 (N, H, W, C).
        index: int64 (B,), which of the images are the batch; they are fetched where they lie.
        values: float32 (B, layout.size).
        blur_rows, jpeg_rows: int64, the rows of the batch to blur and to compress; None for all.
        constants: `constants_on` the images' device.
        layout: what the columns are.

    Returns:
        uint8 (B, H, W, C).
    """
    columns, (ring, transform, steps) = layout.columns, constants
    values = values.contiguous()
    passes = passes_triton if images.is_cuda and passes_triton else passes_torch
    pixels = passes.warp(images, index, values, layout) if "space" in columns or "waves" in columns else images[index]
    blurred, marked = None, None
    if "blur" in columns:
        pixels = pixels.to(torch.float16 if images.is_cuda else torch.float32)
        if _any(blur_rows):
            blurred = passes.blur(pixels, blur_rows, values, layout)
    if pixels.dtype != torch.uint8 or "colour" in columns or "noise" in columns:
        pixels = passes.shade(pixels, blurred, _places(blur_rows, pixels), values, ring, layout)
    if "jpeg" in columns and _any(jpeg_rows):
        marked = _jpeg(pixels, jpeg_rows, values[:, columns["jpeg"]][:, 0], transform, steps)
    if marked is not None or "cutouts" in columns:
        pixels = passes.finish(pixels, marked, _places(jpeg_rows, pixels), values, layout)
    return pixels


def _any(rows: Tensor | None) -> bool:
    return rows is None or len(rows) > 0


def _places(rows: Tensor | None, pixels: Tensor) -> Tensor | None:
    """Return for each row of the batch which of `rows` it is, int64 (B,), -1 for none; None if all or none."""
    if rows is None or not len(rows):
        return None
    places = torch.full((len(pixels),), -1, device=pixels.device)
    return places.index_copy(0, rows, torch.arange(len(rows), device=pixels.device))


def _jpeg(pixels: Tensor, rows: Tensor | None, qualities: Tensor, transform: Tensor, steps: Tensor) -> Tensor:
    if rows is not None:
        pixels, qualities = pixels[rows], qualities[rows]
    marked = jpeg_marks(pixels.float(), qualities, transform, steps).round().to(torch.uint8)
    return torch.where((qualities > 0)[:, None, None, None], marked, pixels)


@lru_cache(maxsize=8)
def constants_on(device: torch.device) -> Constants:
    """Return what the passes read on a device: the ring of noise, JPEG's cosine transform and quantisation steps."""
    return (
        torch.from_numpy(noise_ring().copy()).to(device),
        cosine_transform().to(device),
        quantisation_steps().to(device),
    )


def block_size(count: int, share: float) -> int:
    """Return how many of `count` rows get an expensive pass: nearly always enough (4 sigma), and the same each time.

    Another number would be another compilation.
    """
    likely = count * share + 4 * math.sqrt(count * share * (1 - share))
    return min(count, 32 * math.ceil(likely / 32))


def block_of(needed: NDArray[np.bool_], size: int) -> NDArray[np.int64] | None:
    """Return `size` rows with all the needed ones among them, or None where these are all rows."""
    if size >= len(needed):
        return None
    rows = np.flatnonzero(needed)
    return np.concatenate([rows, np.flatnonzero(~needed)[: size - len(rows)]])
