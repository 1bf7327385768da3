"""Waiting until loaders have nothing more to make ahead, so that one configuration's work is not another's noise."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from time import monotonic, process_time, sleep

_LOOK_S = 0.01
_BUSY = 0.3  # of a core over a look
_PATIENCE_S = 1.0


def wait_until_idle() -> None:
    """Return when this process and its children use next to no CPU, or after a second."""
    until = monotonic() + _PATIENCE_S
    used = _used()
    while monotonic() < until:
        began = monotonic()
        sleep(_LOOK_S)
        before, used = used, _used()
        if used - before < _BUSY * (monotonic() - began):
            return


def own_core_seconds() -> float:
    """Return the CPU seconds of this process and its children, also of those that have ended."""
    times = os.times()
    return _used() + times.children_user + times.children_system


def _used() -> float:
    """Return the CPU seconds of this process and of its children that still run."""
    return process_time() + sum(_of_process(child.pid) for child in multiprocessing.active_children() if child.pid)


def _of_process(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):  # it ended, or this is no Linux
        return 0.0
