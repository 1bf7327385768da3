"""How long a GPU stood idle for want of data, measured without waiting for it.

Python queues work for a GPU and runs ahead of it, so what Python waits for the loader says little: the GPU may be busy
with its queue all the while. What counts is when the GPU itself comes to the end of the queue. So marks are queued
among the work: at the end of what there is to do when a batch is asked for, when the batch is there, and when its copy
is. The time the GPU passes between the first two is idleness for want of data; it is next to nothing where the queue
was still long. The marks are read some batches later, when the GPU has passed them, so nothing ever waits.
"""

from __future__ import annotations

from collections import deque

import torch

_Marks = tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event]


class GpuIdle:
    """Marks in the current stream of a GPU.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._passed: deque[_Marks] = deque()  # queued; the GPU may not have come there yet
        self._free: list[_Marks] = []
        self._marks: _Marks | None = None

    def asks(self) -> None:
        """A batch is asked for."""
        self._marks = self._free.pop() if self._free else (_new(), _new(), _new())
        self._mark(0)

    def gets(self) -> None:
        """The batch is there."""
        self._mark(1)

    def goes_on(self) -> None:
        """What had to be waited for in the stream before the batch may be used has been queued."""
        self._mark(2)
        if self._marks is not None:
            self._passed.append(self._marks)
            self._marks = None

    def makes(self) -> None:
        """The GPU itself makes the batch from here on, which is work; that the batch is there tells nothing then."""
        self.gets()
        self.goes_on()

    def _mark(self, which: int) -> None:
        if self._marks is not None:
            self._marks[which].record(torch.cuda.current_stream(self._device))

    def take(self) -> tuple[float, float]:
        """Return the seconds for want of data and for want of the copy that have become known since the last call."""
        idle = copy = 0.0
        while self._passed and self._passed[0][2].query():  # type: ignore[no-untyped-call]
            marks = self._passed.popleft()
            idle += marks[0].elapsed_time(marks[1]) / 1000
            copy += marks[1].elapsed_time(marks[2]) / 1000
            self._free.append(marks)
        return idle, copy


def _new() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
