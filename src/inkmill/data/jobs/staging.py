"""A folder that appears whole or not at all, at whatever moment the process is killed.

Beside the destination `set` lie, while a conversion runs, `.set.inkmill` (where everything is written),
`.set.inkmill-old` (the old data, between the two moves of `commit`) and `.set.inkmill-lock`. A process that is killed
leaves the old data or none. The next conversion to the same place deletes what it left, and restores old data that
were set aside when the kill fell between the two moves. The system releases the lock with the process.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from inkmill.data.jobs.rejects import REJECTS
from inkmill.errors import OutputError
from inkmill.files import make_folder, writing
from inkmill.locks import FileLock

MANIFEST = "manifest.json"
_SYNC_ONE_BY_ONE = 1000  # files; with more, one sync of the whole system is faster
_VOLATILE = frozenset({"lock.mdb"})  # files that LMDB creates when it is read


class Staging:
    """The hidden folder of one destination; use it in a `with` block and call `commit` at its end.

    Args:
        destination: the folder to make.
        overwrite: replace an existing converted set.

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
        self.out = self.work / "out"
        self.rejected = self.work / "rejected"
        self.rejected_destination = self.destination.with_name(f"{self.destination.name}.rejected")
        self._old = self.destination.with_name(f"{hidden}-old")
        lock = self.destination.with_name(f"{hidden}-lock")
        taken = f"another conversion is writing to this place ({{owner}}; it holds {lock}): wait for its end"
        self._lock = FileLock(lock, taken)

    def __enter__(self) -> Staging:
        make_folder(self.destination.parent)
        # 1. The lock comes first: whoever holds it knows that hidden folders here belong to no living run.
        self._lock.acquire()
        try:
            with writing(self.destination):
                # 2. Clean up after a killed run before looking at the destination, which may have to be restored.
                self._clean()
                self._check_place()
                # 3. An empty scratch folder on the same file system, so that moving it is one atomic rename.
                self.out.mkdir(parents=True)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self._lock.release()

    def commit(self) -> None:
        """Sync everything to the disk and move it into place; raises OutputError."""
        with writing(self.destination):
            # 1. All bytes reach the disk before any name points to them.
            _sync(self.work)
            self.publish_rejected()
            # 2. Two moves, since a folder cannot replace one that is not empty. Killed before the first, the old data
            #    are in place; between them, they are in `_old`, and the next run restores them; after them, the new.
            if self.destination.exists():
                self.destination.replace(self._old)
            self.out.replace(self.destination)
            # 3. The names reach the disk, too; only then are the old data deleted.
            _sync_folder(self.destination.parent)
            shutil.rmtree(self._old, ignore_errors=True)

    def publish_rejected(self) -> None:
        """Move the rejected samples into place, or delete those of the data that are replaced."""
        with writing(self.rejected_destination):
            if self.rejected_destination.exists():
                shutil.rmtree(self.rejected_destination)
            if self.rejected.exists():
                self.rejected.replace(self.rejected_destination)

    def _clean(self) -> None:
        """Restore or delete what a killed run left; holding the lock means that no living run owns it."""
        if self._old.exists() and not self.destination.exists():
            self._old.replace(self.destination)
        for folder in (self._old, self.work):
            if folder.exists():
                shutil.rmtree(folder)

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
        if reason := why_not_replaceable(place):
            raise OutputError(f"{place} is not overwritten, for {reason}: remove it yourself")


def count_files(folder: Path) -> int:
    """Return how many files a tree holds, without those that LMDB creates when it is read."""
    return sum(1 for _ in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    return (Path(place, name) for place, _, names in os.walk(folder) for name in names if name not in _VOLATILE)


def why_not_replaceable(folder: Path) -> str | None:
    """Return the reason why a folder is not only a set that `convert` (ours or TAO's) made; None if it may be deleted.

    A manifest is the last file that is written, and counts the others: any newer file was changed or added since.
    """
    names = {entry.name for entry in folder.iterdir()}
    if MANIFEST not in names and "data.mdb" in names:
        others = sorted(names - {"data.mdb", *_VOLATILE})
        return f"{others[0]} is no part of an LMDB" if others else None
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


def _sync(folder: Path) -> None:
    """Sync a tree to the disk: file by file, or the whole system at once when there are very many files."""
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
