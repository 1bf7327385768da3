"""Keeps the host a little ahead of the GPU, and asleep when it is far enough.

A step is issued in a fraction of the time that the GPU takes for it. Left alone, the host fills the GPU's queue and
then spins until there is room: one core does nothing but wait, and the loader's workers lack it. Of two cores that is
half.
So the host sleeps until the GPU is so close behind that it could run dry if the host were held up for a moment.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

import torch

AHEAD_S = 0.05
"""How far ahead the host goes on working, at least by one step: longer than it is usually held up."""

_SMOOTH = 0.8


def steps_ahead(step_s: float) -> int:
    """Return how many steps the host may be ahead of a GPU that takes `step_s` seconds for one."""
    return 1 + int(AHEAD_S / max(step_s, 1e-3))


class Pace:
    """The pace of one training loop; on a CPU, where nothing is queued, it does nothing.

    Args:
        device: where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: deque[torch.cuda.Event] = deque()  # of steps that the GPU may not have done yet
        self._free: list[torch.cuda.Event] = []
        self._step_s = 0.0
        self._last = perf_counter()

    def issued(self) -> None:
        """A step has been issued: sleep until the GPU is close enough."""
        if self._device.type != "cuda":
            return
        end = self._free.pop() if self._free else torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        end.record(torch.cuda.current_stream(self._device))
        self._ends.append(end)
        while len(self._ends) > steps_ahead(self._step_s):
            done = self._ends.popleft()
            done.synchronize()
            self._free.append(done)
        now = perf_counter()
        self._step_s = _SMOOTH * self._step_s + (1 - _SMOOTH) * (now - self._last)
        self._last = now
