"""Pictures from host memory to a GPU: fetched by the GPU itself, on a stream of its own.

A GPU can only fetch from page-locked memory. Worker processes write into memory that lives as long as they do, so that
memory is locked once and each batch goes from where it was made straight to the GPU: copying it into other locked
memory first would keep the training process busy for longer than the GPU needs to fetch it. What other loaders hand
over goes through two locked batches in turn.
"""

from __future__ import annotations

import contextlib
import weakref
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inkmill.data.loaders.rows import RaggedImages, Shape, ragged_bytes
from inkmill.data.pipeline.resize import Resize
from inkmill.errors import first_line

try:  # it comes with torch where there are GPUs, except on Windows
    from inkmill.kernels.resize import resize_rows
except ImportError:
    resize_rows = None  # type: ignore[assignment]

Pixels = NDArray[np.uint8]


@lru_cache(maxsize=8)
def why_not_resize(device: torch.device) -> str | None:
    """Return why a GPU does not fit pictures, or None.

    Triton needs a C compiler, and a GPU that it knows; and OpenCV may round in another way on another processor.
    """
    if resize_rows is None:
        return "Triton is not installed"
    resize, picture = Resize(24, 50, 3), np.random.default_rng(0).integers(0, 256, (31, 67, 3), np.uint8)
    shape = (1, resize.height, resize.width, resize.channels)
    rows = RaggedImages(np.empty(ragged_bytes(shape), np.uint8), shape, resize)
    rows.put(0, picture)
    try:
        # Kernels run on the current device.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            found = resize_rows(torch.from_numpy(rows.images).to(device), shape).cpu().numpy()
    except Exception as error:  # a compiler's errors share no base
        return f"Triton does not run here ({first_line(error)})"
    return None if np.array_equal(found[0], resize.apply(picture)[0]) else "OpenCV rounds in another way here"


class Upload:
    """Sends batches to a GPU.

    Args:
        device: a CUDA device.
        batch_bytes: size of the largest batch.
    """

    def __init__(self, device: torch.device, batch_bytes: int) -> None:
        self._device, self._batch_bytes = device, batch_bytes
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging: list[_Staging] = []
        self._locked: list[Pixels] = []
        self._refused: list[Pixels] = []
        self._finalizer = weakref.finalize(self, _unlock, self._locked)

    def lock(self, memory: list[Pixels]) -> str | None:
        """Lock the memory that batches will lie in, and let go of what was locked before.

        Args:
            memory: arrays; none where each batch has memory of its own.

        Returns:
            What a user should know where the system refuses, else None.
        """
        known = {id(array) for array in (*self._locked, *self._refused)}
        if {id(array) for array in memory} == known:
            return None
        self.unlock()
        for array in memory:
            error = int(_runtime().cudaHostRegister(array.ctypes.data, array.nbytes, 0))
            if error:
                self._refused = memory
                _unlock(self._locked)
                with contextlib.suppress(RuntimeError):
                    torch.zeros(
                        1, device=self._device
                    )  # takes the error, which the next kernel would report as its own
                return (
                    f"{sum(a.nbytes for a in memory) / 2**30:.1f} GiB of the workers' memory cannot be page-locked"
                    f" (CUDA error {error}): each batch is copied once more on its way to the GPU"
                )
            self._locked.append(array)
        return None

    def send(self, images: Pixels, ragged: Shape | None = None) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Begin to copy a batch, and to fit it.

        Args:
            images: what to copy.
            ragged: the shape to fit it to; None where it is resized.

        Returns:
            The tensor on the device, and the event after which it may be read and `images` may change.
        """
        with torch.cuda.stream(self._stream):
            there = self._copied(images)
            if ragged is not None:
                there = resize_rows(there, ragged)
            return there, self._stream.record_event()

    def _copied(self, images: Pixels) -> torch.Tensor:
        if self._locked:
            return torch.from_numpy(images).to(self._device, non_blocking=True)
        if not self._staging:
            self._staging = [_Staging(self._batch_bytes) for _ in range(2)]
        self._staging.reverse()
        return self._staging[0].send(images, self._device)

    def wait(self) -> None:
        """Return when all that was sent is there."""
        self._stream.synchronize()

    def unlock(self) -> None:
        """Let go of all memory; the next batch needs `lock` again."""
        self.wait()
        _unlock(self._locked)
        self._refused = []


def _unlock(locked: list[Pixels]) -> None:
    for array in locked:
        _runtime().cudaHostUnregister(array.ctypes.data)
    locked.clear()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _Staging:
    """Page-locked memory for one batch, used again when its copy has left."""

    def __init__(self, size: int) -> None:
        self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._sent: Any = None

    def send(self, images: Pixels, device: torch.device) -> torch.Tensor:
        if self._sent is not None:
            self._sent.synchronize()
        pinned = self._pinned[: images.size].view(images.shape)
        pinned.copy_(torch.from_numpy(images))
        tensor = pinned.to(device, non_blocking=True)
        self._sent = torch.cuda.current_stream(device).record_event()
        return tensor
