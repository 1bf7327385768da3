"""Ctrl-C and SIGTERM end a run after the step under way, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lightning.fabric import Fabric

from inkmill.training.ranks import all_reduce_sum


class StopSignal:
    """What a signal has asked for.

    Args:
        fabric: launched.
        say: prints one line.
        every: steps between two times that several ranks agree.
    """

    def __init__(self, fabric: Fabric, say: Callable[[str], None], every: int) -> None:
        self._fabric, self._say, self._every = fabric, say, every
        self._asked = False

    def asked(self, step: int) -> bool:
        """Return whether the run is to stop after `step`; several ranks agree, or one would wait for ever."""
        if self._fabric.world_size == 1:
            return self._asked
        return not step % self._every and all_reduce_sum(self._fabric, [float(self._asked)])[0] > 0

    @contextmanager
    def listened_for(self) -> Iterator[None]:
        """Take note of signals; afterwards they do again what they did before."""

        def note(number: int, frame: FrameType | None) -> None:
            self._asked = True
            signal.signal(number, previous[number])
            self._say("stopping: this step is finished and a checkpoint saved; once more to stop at once")

        previous: dict[int, Any] = {}
        try:
            for number in (int(signal.SIGINT), int(signal.SIGTERM)):
                previous[number] = signal.signal(number, note)
        except ValueError:  # not the main thread: Python delivers signals elsewhere
            pass
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
