"""Writing files so that a crash leaves the old one or the new one, and a full disk is one sentence.

Every file inkmill writes whole goes to a temporary name in the same folder first and is then moved over the old one
with `os.replace`, which is atomic. An `OSError` on the way becomes an `OutputError` that says what and why.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from inkmill.errors import OutputError

_REASONS = {
    errno.EACCES: "permission denied; choose a place you may write to",
    errno.EPERM: "the system does not allow it; choose a place you may write to",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.ENOSPC: "the disk is full; free some space or choose another place",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another place",
    errno.EFBIG: "the file would be larger than this system allows",
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder; a file was expected",
    errno.EEXIST: "it already exists",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`",
    errno.EIO: "the device reports an input/output error",
}


def explain(error: OSError) -> str:
    """Return one sentence for an operating-system error: the file where it is known, and what to do."""
    reason = _REASONS.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, str | bytes) else reason


def open_data(path: str | Path) -> BinaryIO:
    """Open a regular file for reading.

    A device such as /dev/zero has no end, and a named pipe may never have a beginning: neither is data.

    Raises:
        OSError: it cannot be opened, or it is no regular file; `explain` has the sentence.
    """
    # Not blocking: a pipe that nobody writes to would be waited for before there is anything to ask what it is.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        check_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(status: os.stat_result, path: str | Path) -> None:
    """Raise OSError for what is no regular file: a folder, a device, a named pipe."""
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    kind = kinds.get(stat.S_IFMT(status.st_mode), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}; a regular file was expected", os.fspath(path))


def read_data(path: str | Path, limit: int, *, pipes: bool = False) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Args:
        path: the file.
        limit: bytes; more are refused before they are read.
        pipes: take pipes and devices too, for what a user names by hand: `@<(find ...)`.

    Raises:
        OSError: it cannot be opened, is too large or no regular file; `explain` has the sentence.
    """
    with open(path, "rb") if pipes else open_data(path) as file:  # noqa: PTH123
        if not pipes and os.fstat(file.fileno()).st_size <= limit:
            return file.read(os.fstat(file.fileno()).st_size)  # not to its end: some files of /proc have none
        parts, size = [], 0
        while pipes and size <= limit and (part := file.read(1 << 16)):
            parts.append(part)
            size += len(part)
    if not pipes or size > limit:
        raise OSError(errno.EINVAL, f"it is larger than the {max(limit >> 20, 1):,} MiB that it may have", str(path))
    return b"".join(parts)


_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
UNPACK = {
    "gzip": "unpack it with `gunzip`",
    "bzip2": "unpack it with `bunzip2`",
    "xz": "unpack it with `unxz`",
    "zstd": "unpack it with `unzstd`",
    "zip": "unpack it with `unzip`",
}
"""What to do about a compressed file, by the name of its compression."""


def compression_of(head: bytes) -> str | None:
    """Return the name of the compression that the first bytes of a file are of, or None."""
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn an OSError raised inside into an OutputError about `path`."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise OutputError(f"cannot write {path}: {reason}") from error


def make_folder(path: str | Path) -> Path:
    """Create a folder with its parents, where missing, and return it.

    Raises:
        OutputError: no permission, a file is in the way, the disk is full.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise OutputError(f"cannot write {path}: it is a file, and a folder is needed there")
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well it takes the place of `path`, else it is removed.

    The bytes are on the disk before the move (fsync), so a power cut leaves the old file or the new one.

    Raises:
        OutputError: the folder or the file cannot be written.
    """
    path = Path(path)
    make_folder(path.parent)
    with writing(path):
        # Not tempfile.mkstemp: its files are for their owner alone, and results are for everyone the umask allows.
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}{path.suffix or '.tmp'}"
        temporary.open("xb").close()
        try:
            yield temporary
            with temporary.open("rb+") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()


def write_bytes_atomic(path: str | Path, data: bytes) -> None:
    """Write a whole file; raises OutputError."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text_atomic(path: str | Path, text: str) -> None:
    """Write a whole text file, UTF-8 with the line ends of `text`; raises OutputError.

    What UTF-8 cannot carry, as a file name of other bytes, is spelled out (`\\udce9`).
    """
    write_bytes_atomic(path, text.encode("utf-8", "backslashreplace"))


def write_json_atomic(path: str | Path, data: Any) -> None:
    """Write a whole JSON file, indented, UTF-8; raises OutputError, and ValueError for NaN, which JSON lacks."""
    write_text_atomic(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
