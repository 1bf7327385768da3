"""A lock on a place that only one process may write to: held through the system, which releases it with the process.

A file with a process number in it would outlive `kill -9`, and the number may be another's by then. So the file is
locked (flock; on Windows a byte of it), and what it holds, who locked it, is there for the sentence alone.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from inkmill.errors import OutputError
from inkmill.files import writing

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK, errno.ENOENT)
_OWNER_BYTES = 200


class FileLock:
    """An advisory lock on a file, made where it is absent; use `acquire` and `release`, or a `with` block.

    A file system that has no locks is written to without one.

    Args:
        path: the file of the lock; its folder exists.
        taken: what to say where another process holds it, a sentence with `{owner}` in it.
    """

    def __init__(self, path: Path, taken: str) -> None:
        self._path, self._taken, self._descriptor = path, taken, -1

    def acquire(self) -> None:
        """Take the lock, or raise OutputError with the name of its owner."""
        with writing(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._try()
                # The former owner may have removed the file between our open and our lock.
                held = os.fstat(self._descriptor).st_ino == self._path.stat().st_ino
            except OSError as error:
                held = error.errno not in _TAKEN
            if held:
                self._sign()
                return
            owner = self._owner()
            os.close(self._descriptor)
        raise OutputError(self._taken.replace("{owner}", owner))

    def release(self) -> None:
        """Give the lock back and remove its file."""
        # Deleted before it is released, or it might be the next owner's by then. Windows cannot delete an open file.
        with suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        with suppress(OSError):
            if os.name == "nt":
                self._path.unlink()

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _sign(self) -> None:
        owner = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S}"
        # Behind the byte that Windows locks, which others cannot read there.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, b"\n" + owner.encode("utf-8", "replace"))

    def _owner(self) -> str:
        with suppress(OSError):
            os.lseek(self._descriptor, 1, os.SEEK_SET)
            if owner := os.read(self._descriptor, _OWNER_BYTES).decode("utf-8", "replace"):
                return owner
        return "another process"

    def _try(self) -> None:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(self._descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
