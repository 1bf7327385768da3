"""Results on their way from a GPU, taken without making it wait."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class AsyncHostCopy:
    """Copies of tensors in the CPU's memory; taking them does not wait for what was queued on the GPU after them.

    Args:
        results: on one device.
    """

    def __init__(self, *results: Tensor) -> None:
        self._results = [result.to("cpu", non_blocking=True) for result in results]
        on_gpu = results[0].device.type == "cuda"
        self._there = torch.cuda.current_stream(results[0].device).record_event() if on_gpu else None

    def take(self) -> list[NDArray[Any]]:
        """Return them as arrays."""
        if self._there is not None:
            self._there.synchronize()
        return [result.numpy() for result in self._results]
