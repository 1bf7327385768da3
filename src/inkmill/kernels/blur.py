"""Blur as a GPU kernel that runs along the lines, and then along the columns of its result.

An image's Gaussian reaches as far as its sigma asks for, so one that is hardly blurred costs hardly anything.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024  # pixels times channels of a program


def blur(pixels: Tensor, rows: Tensor | None, values: Tensor, column: int, radius: int) -> Tensor:
    """Do what `data.augment.torch_passes.blur` does, on a GPU, with float16 pixels; `radius` is not needed here."""
    batch, height, width, channels = pixels.shape
    count, numbers = batch if rows is None else len(rows), height * width * channels
    pixels = pixels.contiguous()
    sideways = torch.empty((count, height, width, channels), dtype=torch.float16, device=pixels.device)
    out = torch.empty_like(sideways)
    # The same kernel twice: pixels of a line are `channels` numbers apart, those of a column a whole line.
    for source, goal, size, step in (
        (pixels, sideways, width, channels),
        (sideways, out, height, width * channels),
    ):
        _blur[(count, triton.cdiv(numbers, _BLOCK))](
            source,
            values if rows is None else rows,
            values,
            goal,
            numbers,
            values.shape[1],
            CHOSEN=rows is not None,
            FETCHED=source is pixels,
            SIGMA=column,
            SIZE=size,
            STEP=step,
            BLOCK=_BLOCK,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _blur(  # type: ignore[no-untyped-def]
    source,
    rows,
    values,
    goal,
    count,
    columns,
    CHOSEN: tl.constexpr,
    FETCHED: tl.constexpr,
    SIGMA: tl.constexpr,
    SIZE: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Blur along an axis of SIZE places, STEP numbers apart."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_image = number < count
    chosen = row
    if CHOSEN:
        chosen = tl.load(rows + row)
    if FETCHED:
        source += chosen * count
    else:
        source += row * count
    sigma = tl.load(values + chosen * columns + SIGMA)
    reach = tl.ceil(3.0 * sigma).to(tl.int32)
    sigma = tl.maximum(sigma, 1e-3)
    # The weights are summed as they are used, so that they add up to 1 for any sigma.
    place = number // STEP % SIZE
    total = 0.0
    value = tl.zeros([BLOCK], tl.float32)
    for tap in range(-reach, reach + 1):
        weight = tl.exp(-0.5 * (tap / sigma) * (tap / sigma))
        to = tl.minimum(tl.maximum(place + tap, 0), SIZE - 1)
        value += weight * tl.load(source + number + (to - place) * STEP, mask=in_image, other=0).to(tl.float32)
        total += weight
    tl.store(goal + row * count + number, (value / total).to(tl.float16), mask=in_image)
