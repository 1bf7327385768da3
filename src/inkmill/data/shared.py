"""Memory that processes share, without a name and so without leftovers.

multiprocessing's own arrays lie in a file of /dev/shm that is unlinked as soon as it is open: whatever kills whom, the
kernel frees it with the last process. Containers often have a /dev/shm of 64 MiB; multiprocessing then falls back to
the folder for temporary files without a word, which works and is slower, so we say it.
"""

from __future__ import annotations

import os
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

_SHARED = Path("/dev/shm")


def allocate(size: int) -> Any:
    """Return `size` shared bytes, all zero; they can be handed to processes as they start."""
    return RawArray("B", max(size, 1))


def bytes_left() -> int | None:
    """Return how much shared memory the system has left; None where it sets no limit of its own."""
    if not _SHARED.is_dir():
        return None
    found = os.statvfs(_SHARED)
    return found.f_bavail * found.f_frsize


def shortage(size: int) -> str | None:
    """Say that `size` bytes will not lie in memory, or return None."""
    left = bytes_left()
    if left is None or size <= left:
        return None
    return (
        f"{_SHARED} has {left / 2**20:,.0f} MiB left and loading needs {size / 2**20:,.0f}: batches pass through a file"
        " in the folder for temporary files, which is slower (containers: --shm-size, or smaller batches)"
    )
