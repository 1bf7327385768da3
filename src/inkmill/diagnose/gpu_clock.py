"""What work costs a GPU, and what issuing it costs the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

_ISSUES = 5
_GPU_HZ = 2e9  # about; the kernel that keeps the GPU busy need only last long enough


@dataclass(frozen=True)
class GpuClock:
    """Takes times of a device.

    Attributes:
        device: where the work runs; of a CPU only `settle` makes sense, and does nothing.
    """

    device: torch.device

    def settle(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def issue_s(self, work: Callable[[], Any]) -> float:
        """Return the seconds that the host needs to issue some work of the GPU, whose queue is empty before."""
        times = []
        for _ in range(_ISSUES):
            self.settle()
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        self.settle()
        return median(times)

    def gpu_s(self, work: Callable[[], Any], issue_s: float) -> float:
        """Return the seconds of work whose kernels wait in the queue already when the GPU gets to them.

        One piece of work at a time: the queue holds about a thousand kernels, and then the host would wait too.
        """
        self.settle()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.device):
            torch.cuda._sleep(int(_GPU_HZ * 2 * issue_s))  # type: ignore[no-untyped-call]
            began.record()
            work()
            ended.record()
        self.settle()
        return float(began.elapsed_time(ended)) / 1e3
