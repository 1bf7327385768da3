"""A folder that appears whole or not at all.

Everything is written into a hidden folder beside the destination and moved over it at the end. A process that is
killed at any moment leaves the old data or none, and its leavings are cleaned up by the next conversion to the same
place, which also puts back old data that were set aside when the kill fell between two moves. A lock file, which the
system releases with the process, keeps two conversions from one place.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from inkmill.data.jobs.rejects import REJECTS
from inkmill.errors import OutputError
from inkmill.files import make_folder, writing

MANIFEST = "manifest.json"
_SYNC_ONE_BY_ONE = 1000
_COME_AND_GO = frozenset({"lock.mdb"})


class Staging:
    """The hidden folder of one destination; use it in a `with` block and call `commit` at its end.

    Args:
        destination: the folder to make.
        overwrite: replace a converted set that is there.

    Attributes:
        destination: the same, absolute, links resolved.
        work: scratch folder, gone afterwards.
        out: what becomes the destination.
        rejected: what becomes DESTINATION.rejected, if it is made.

    Raises:
        OutputError: the place is taken, locked by another run, or cannot be written.
    """

    def __init__(self, destination: str | os.PathLike[str], overwrite: bool = False) -> None:
        self.destination = Path(os.path.realpath(destination))
        if not self.destination.name:
            raise OutputError(f"cannot write {self.destination}: name a folder to make")
        self._overwrite = overwrite
        hidden = f".{self.destination.name}.inkmill"
        self.work = self.destination.with_name(hidden)
        self.out, self.rejected = self.work / "out", self.work / "rejected"
        self.rejected_destination = self.destination.with_name(f"{self.destination.name}.rejected")
        self._old = self.destination.with_name(f"{hidden}-old")
        self._lock = _Lock(self.destination.with_name(f"{hidden}-lock"))

    def __enter__(self) -> Staging:
        make_folder(self.destination.parent)
        self._lock.acquire()
        try:
            with writing(self.destination):
                self._clean()
                self._check_place()
                self.out.mkdir(parents=True)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self._lock.release()

    def commit(self) -> None:
        """Bring everything to the disk and move it into place; raises OutputError."""
        with writing(self.destination):
            _sync(self.work)
            self.publish_rejected()
            if self.destination.exists():
                self.destination.replace(self._old)
            self.out.replace(self.destination)
            _sync_folder(self.destination.parent)
            shutil.rmtree(self._old, ignore_errors=True)

    def publish_rejected(self) -> None:
        """Move the rejected samples into place, or take away those of the data that are replaced."""
        with writing(self.rejected_destination):
            if self.rejected_destination.exists():
                shutil.rmtree(self.rejected_destination)
            if self.rejected.exists():
                self.rejected.replace(self.rejected_destination)

    def _clean(self) -> None:
        """Undo what a killed run left; holding the lock means that no living run owns it."""
        if self._old.exists() and not self.destination.exists():
            self._old.replace(self.destination)
        for leaving in (self._old, self.work):
            if leaving.exists():
                shutil.rmtree(leaving)

    def _check_place(self) -> None:
        place, rejected = self.destination, self.rejected_destination
        if rejected.exists() and not (rejected / REJECTS).is_file():
            raise OutputError(f"{rejected} is in the way: bad samples would go there; move it or choose another place")
        if not place.exists():
            return
        if not place.is_dir():
            raise OutputError(f"cannot write {place}: it is a file, and a folder is needed there")
        if not any(place.iterdir()):
            return
        if not self._overwrite:
            raise OutputError(
                f"{place} is not empty: choose another place, or replace it with --overwrite (overwrite=True in Python)"
            )
        if foreign := what_convert_did_not_make(place):
            raise OutputError(f"{place} is not overwritten, for {foreign}: remove it yourself")


def count_files(folder: Path) -> int:
    """Return how many files a tree holds, those that LMDB makes on being read left out."""
    return sum(1 for _ in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    return (Path(place, name) for place, _, names in os.walk(folder) for name in names if name not in _COME_AND_GO)


def what_convert_did_not_make(folder: Path) -> str | None:
    """Say what a folder holds beside a set that `convert` (here or TAO's) made, or None where nothing could be missed.

    A manifest is the last file that is written, and counts the others: what is newer was changed or added since.
    """
    names = {entry.name for entry in folder.iterdir()}
    if MANIFEST not in names and "data.mdb" in names:
        strange = sorted(names - {"data.mdb", *_COME_AND_GO})
        return f"{strange[0]} is no part of an LMDB" if strange else None
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        made = manifest.get("files") if manifest["format"] == "inkmill data set" else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "it does not hold a converted set"
    if made is None:
        return "it was made by an earlier inkmill, which did not count its files"
    written = (folder / MANIFEST).stat().st_mtime_ns
    found = 0
    for path in _files(folder):
        found += 1
        if path.lstat().st_mtime_ns > written:
            return f"{path.relative_to(folder)} is newer than its conversion"
    return None if found == made else f"it holds {found:,} files, and its conversion left {made:,}"


class _Lock:
    """An advisory lock on a file, released by the system when its process ends."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1

    def acquire(self) -> None:
        with writing(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._try()
                # The former owner may have removed the file between our open and our lock.
                held = os.fstat(self._descriptor).st_ino == self._path.stat().st_ino
            except OSError as error:
                held = error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK, errno.ENOENT)
        if not held:
            os.close(self._descriptor)
            raise OutputError(f"another conversion is writing to this place (it holds {self._path}): wait for its end")

    def release(self) -> None:
        # Removed before it is let go, or the next owner's file would be removed; Windows wants it the other way round.
        with suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        with suppress(OSError):
            if os.name == "nt":
                self._path.unlink()

    def _try(self) -> None:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(self._descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync(folder: Path) -> None:
    """Bring a tree to the disk: file by file, or the whole system at once when there are very many files."""
    count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            count += 1
            if count > _SYNC_ONE_BY_ONE and hasattr(os, "sync"):
                os.sync()
                return
            with Path(place, name).open("rb+") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows cannot open folders, and needs no such thing
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
