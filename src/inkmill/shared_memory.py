"""Memory that processes share, without a name and so without leftovers.

multiprocessing's own memory lies in a file of /dev/shm that is unlinked as soon as it is open: whatever kills whom, the
kernel frees it with the last process. Containers often have a /dev/shm of 64 MiB; multiprocessing then falls back to
the folder for temporary files silently, which works and is slower, so `shortage` says it.

Its arrays are not used, only the memory under them: an array is filled with zeros, by one core, before anyone can work.
"""

from __future__ import annotations

import errno
import os
from multiprocessing.heap import Arena
from pathlib import Path

from inkmill.errors import OutputError

_SHARED = Path("/dev/shm")


def allocate(size: int) -> Arena:
    """Return `size` shared bytes, all zero, as `.buffer`; they can be handed to processes as they start.

    Raises:
        OutputError: there is no room for them.
    """
    try:
        memory = Arena(max(size, 1))
    except OSError as error:
        if error.errno != errno.EFBIG:  # beyond what one file of this file system can hold
            raise
        raise OutputError(_too_much(size)) from error
    descriptor = descriptor_of(memory)
    # Asked before it is taken: a file that grows until the disk is full takes minutes, and the room of others.
    left = _left_beside(descriptor)
    if left is not None and size > left:
        raise OutputError(
            f"{size / 2**20:,.0f} MiB of shared memory are needed at once, and {left / 2**20:,.0f} are free: "
            "take a smaller batch_size, fewer workers, or a smaller cache"
        )
    try:
        if descriptor is not None:
            reserve(descriptor, max(size, 1))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OutputError(_too_much(size)) from error
    return memory


def _too_much(size: int) -> str:
    return (
        f"{size / 2**20:,.0f} MiB of shared memory cannot be had: take a smaller batch_size, fewer workers, or a "
        "smaller cache"
    )


def descriptor_of(memory: Arena) -> int | None:
    """Return the file in which shared bytes lie, for `os.pwrite`; None where the system has no such thing."""
    return getattr(memory, "fd", None)


def reserve(descriptor: int, size: int) -> None:
    """Give a new file all its pages: who writes to one that the system lacks later on is killed. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)


def _left_beside(descriptor: int | None) -> int | None:
    """Return how many bytes can be had where an open file lies; None where the system does not say."""
    if descriptor is None or not hasattr(os, "fstatvfs"):
        return None
    found = os.fstatvfs(descriptor)
    return found.f_bavail * found.f_frsize


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
