"""The torch engine: applies a table to a whole uint8 batch on its device.

Nothing waits for the device: the table goes there in one copy, and which passes run is known from the spec. What also
draws on the device is in `augment_torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.table import AugmentParams, ParamLayout
from inkmill.errors import MissingExtraError

try:
    import torch
    from torch import Tensor

    from inkmill.data.augment.engine_torch import Constants, block_of, block_size, change_images, constants_on
    from inkmill.data.augment.recorded_torch import RecordedPass
except ImportError:
    raise MissingExtraError("torch", "train", "augmentation on the GPU") from None

if TYPE_CHECKING:
    Engine = Callable[..., Tensor]

_recorded: dict[Hashable, RecordedPass] = {}
"""The last used last."""

MAX_COMPILATIONS = 64
"""Batch sizes x bucket widths x specs; torch's own limit of 8 falls back silently."""


def apply_torch(images: Tensor, table: AugmentParams, compiled: bool | None = None) -> Tensor:
    """Apply a table to a batch.

    Args:
        images: uint8 (B, H, W, C), RGB or gray, on any device; not changed.
        table: what was drawn for this batch and size.
        compiled: compile the pass (tens of seconds at the first batch of a shape); by default on CUDA only. A table
            with many more blurred or compressed images than its spec makes likely is applied without, for its block of
            such images would be of another size.

    Returns:
        uint8 (B, H, W, C) on the same device; not waited for.

    Raises:
        ValueError: batch and table do not belong together.
    """
    expected = (len(table), table.height, table.width)
    if tuple(images.shape[:3]) != expected:
        raise ValueError(f"the table was drawn for a batch of {expected}, the images are {tuple(images.shape)}")
    layout = table.layout
    if not layout.columns:
        return images.clone()
    needed = [None if part is None else part[:, 0] > 0 for part in (table.part("blur"), table.part("jpeg"))]
    compiled, blocks = choose_rows(needed, layout, len(table), images.is_cuda if compiled is None else compiled)
    packed, pieces = packed_for([table.values.ravel(), *blocks], np.float32, images.device)

    def run(images: Tensor, packed: Tensor) -> Tensor:
        return _engine(layout, compiled)(images, *pieces(packed), constants_on(images.device))

    with passes_on(images.device):
        if not (compiled and images.is_cuda):
            return run(images, packed.to(images.device, non_blocking=True))
        key = (layout, images.shape, images.device, packed.shape)
        recorded = _recorded.pop(key, None) or RecordedPass(run, (images, packed), images.device)
        _recorded[key] = recorded
        if len(_recorded) > MAX_COMPILATIONS:  # each has memory of its own on the GPU
            del _recorded[next(iter(_recorded))]
        return recorded(images, packed)


@contextmanager
def passes_on(device: torch.device) -> Iterator[None]:
    """What passes run in: no gradients, room for their compilations, and their device current, for Triton's kernels."""
    current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=MAX_COMPILATIONS), current:
        yield


def choose_rows(
    needed: Sequence[NDArray[np.bool_] | None], layout: ParamLayout, count: int, compiled: bool
) -> tuple[bool, list[NDArray[np.int64] | None]]:
    """Choose the rows of a batch to blur and to compress.

    Args:
        needed: for blur and JPEG, bool (count,) of those that need it; None where the spec has no such change.
        layout: the table's.
        count: rows of the batch.
        compiled: whether blocks must have the size of every other batch's.

    Returns:
        Whether they have it (else the pass must run uncompiled); for each change int64 rows, or None for all.
    """
    shares = layout.blur_share, layout.jpeg_share
    counts = [0 if rows is None else int(np.count_nonzero(rows)) for rows in needed]
    sizes = [block_size(count, share) for share in shares]
    compiled = compiled and all(number <= size for number, size in zip(counts, sizes, strict=True))
    blocks = zip(needed, sizes if compiled else counts, strict=True)
    return compiled, [None if rows is None else block_of(rows, size) for rows, size in blocks]


def packed_for(
    parts: list[NDArray[Any] | None], dtype: type[np.generic], device: torch.device
) -> tuple[Tensor, Callable[[Tensor], list[Any]]]:
    """Return vectors as one tensor that `device` can fetch by itself, and what takes a copy of it apart again."""
    sizes = [0 if part is None else len(part) for part in parts]
    # Filled through NumPy: torch's own copy wakes all CPU threads, which costs more than the whole pass on the GPU.
    packed = torch.from_numpy(np.empty(sum(sizes), dtype))
    if device.type == "cuda":
        packed = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
    np.concatenate([part for part in parts if part is not None], out=packed.numpy(), casting="unsafe")

    def pieces(copy: Tensor) -> list[Any]:
        split = torch.split(copy, sizes)
        return [None if part is None else piece for part, piece in zip(parts, split, strict=True)]

    return packed, pieces


@lru_cache(maxsize=MAX_COMPILATIONS)
def _engine(layout: ParamLayout, compiled: bool) -> Engine:
    """Return the function that applies tables of one layout."""
    size = layout.size  # looked up out here: the compiler does not follow it, and would cut the pass in two

    def run(
        images: Tensor,
        values: Tensor,
        blur_rows: Tensor | None,
        jpeg_rows: Tensor | None,
        constants: Constants,
    ) -> Tensor:
        every = torch.arange(len(images), device=images.device)
        table = values.reshape(-1, size)
        blur_rows, jpeg_rows = (None if rows is None else rows.long() for rows in (blur_rows, jpeg_rows))
        return change_images(images, every, table, blur_rows, jpeg_rows, constants, layout)

    return torch.compile(run, dynamic=False) if compiled else run
