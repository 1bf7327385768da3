"""OCR LMDBs, read and written: CLOVA's and TAO's, counted from 1, and VietOCR's, counted from 0.

Keys: `num-samples` (decimal), `image-%09d` (the encoded file), `label-%09d` (UTF-8). A re-converted LMDB may hold
keys of an older, larger set, so `num-samples` says what counts. VietOCR writes one less than there is (its
`nSamples = cnt - 1` counts from 0); its LMDBs are known by their `path-%09d` keys, and their last sample is not lost.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from inkmill.data.formats.multilabel import split_labels
from inkmill.data.sources.base import MAX_IMAGE_BYTES, Source, check_image_bytes, fingerprint
from inkmill.data.sources.lmdb_pages import why_damaged
from inkmill.data.types import Labels, Sample, Target, Text
from inkmill.errors import DataError, MissingExtraError, OutputError
from inkmill.files import check_regular, explain, make_folder

_MAX_SAMPLES = 999_999_999
"""The keys have nine digits."""

_FIRST_MAP_BYTES = 64 << 20
_TRANSACTION_BYTES = 32 << 20


class LmdbSource(Source):
    """One LMDB. The environment is opened in each process on first use, read-only and without a lock file.

    Args:
        folder: the folder of data.mdb.
        multilabel: labels are class names split by blanks.

    Raises:
        DataError: not an LMDB, or not one with these keys.
        MissingExtraError: the package lmdb is absent.
    """

    def __init__(self, folder: Path, multilabel: bool = False) -> None:
        super().__init__(folder.resolve().name)
        self.folder, self._multilabel = folder, multilabel
        self._opened: tuple[int, _Environment] | None = None
        self._base, self._length, notes = _layout(self._environment(), folder)
        self.notes = (f"{folder} is an LMDB of {self._length} samples, counted from {self._base}", *notes)

    def __len__(self) -> int:
        return self._length

    def get(self, index: int) -> Sample:
        """See `Source.get`; image and label come from one transaction."""
        number = self._checked(index) + self._base
        image, label = self._values(number, "image", "label")
        key = f"image-{number:09d}"
        check_image_bytes(len(image), key)
        return Sample(key, image, self._target(label, key))

    @contextmanager
    def reading(self, index: Sequence[int] = ()) -> Iterator[Callable[[int], Sample]]:
        """See `Source.reading`; all samples come from one transaction, which halves what reading one costs."""
        environment = self._environment()
        with environment.reading() as value:

            def get(index: int) -> Sample:
                number = self._checked(index) + self._base
                name = b"image-%09d" % number
                try:
                    image, label = value(name), value(b"label-%09d" % number)
                except environment.error:
                    return self.get(index)  # its error names the key and the reason
                if image is None or label is None or len(image) > MAX_IMAGE_BYTES:
                    return self.get(index)
                key = name.decode("ascii")
                return Sample(key, image, self._target(label, key))

            yield get

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        (image,) = self._values(self._checked(index) + self._base, "image")
        check_image_bytes(len(image), self.key(index))
        return image

    def key(self, index: int) -> str:
        """See `Source.key`: the LMDB key of the image."""
        return f"image-{self._checked(index) + self._base:09d}"

    def target(self, index: int) -> Target:
        """See `Source.target`."""
        (label,) = self._values(self._checked(index) + self._base, "label")
        return self._target(label, self.key(index))

    def described(self, index: Sequence[int]) -> tuple[list[str], list[Target]]:
        """See `Source.described`; all labels come from one transaction."""
        # Bounds of all indices at once: this runs for every batch.
        positions = np.asarray(index, np.int64)
        if positions.size and not (positions.min() >= 0 and positions.max() < len(self)):
            positions = np.array([self._checked(i) for i in index])
        numbers = [f"{number:09d}" for number in (positions + self._base).tolist()]
        keys = ["image-" + number for number in numbers]
        labels = self._environment().get(*["label-" + number for number in numbers])
        if None in labels:
            self.target(index[labels.index(None)])  # its error names the missing key
        return keys, [self._target(label, key) for label, key in zip(cast(list[bytes], labels), keys, strict=True)]

    def files(self, index: Sequence[int]) -> list[Path]:
        """See `Source.files`."""
        return [self.folder / "data.mdb"]

    def release(self) -> None:
        """See `Source.release`."""
        self._opened = None

    def _target(self, data: bytes, key: str) -> Target:
        try:
            label = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.folder}: the label of {key} is not UTF-8 ({error.reason})") from None
        return Labels(tuple(split_labels(label))) if self._multilabel else Text(label)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _values(self, number: int, *kinds: str) -> list[bytes]:
        keys = [f"{kind}-{number:09d}" for kind in kinds]
        found = self._environment().get(*keys)
        if None in found:
            missing = keys[found.index(None)]
            raise DataError(f"{self.folder}: the key {missing} is missing, although num-samples counts it")
        return cast(list[bytes], found)

    def _environment(self) -> _Environment:
        """An environment must not cross a fork, so it is kept with the process it was opened in."""
        # Spawned processes get none by pickling; a forked one has its parent's, which it must not use.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), _open(self.folder))
        return self._opened[1]

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        status = (self.folder / "data.mdb").stat()
        return fingerprint("lmdb", f"{status.st_size} {status.st_mtime_ns} {self._base} {self._length}")

    @cached_property
    def identity(self) -> str:
        """See `Source.identity`."""
        return fingerprint("lmdb", f"{(self.folder / 'data.mdb').stat().st_size} {self._base} {self._length}")


class _Environment:
    """An open LMDB, closed when the last source that reads it is gone."""

    def __init__(self, path: Path) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise MissingExtraError("lmdb", "train", "reading an LMDB") from error
        try:
            damage = why_damaged(path / "data.mdb")
        except OSError as error:
            raise DataError(f"{path} cannot be read as an LMDB: {explain(error)}") from error
        if damage:
            raise DataError(f"{path / 'data.mdb'} is damaged ({damage}): copy it again, or convert it again")
        try:
            # No read-ahead: samples are read in random order, and the pages between them would push out useful ones.
            self._env = lmdb.open(str(path), readonly=True, lock=False, readahead=False, max_dbs=0)
            pages, size = self._env.info()["last_pgno"] + 1, self._env.stat()["psize"]
        except lmdb.Error as error:
            raise DataError(f"{path} cannot be read as an LMDB ({error})") from error
        self._path, self.error = path, lmdb.Error
        # Reading a page beyond the end of the file would kill the process without a message.
        if pages * size > (path / "data.mdb").stat().st_size:
            raise DataError(f"{path / 'data.mdb'} is cut short: copy it again")

    def get(self, *keys: str) -> list[bytes | None]:
        """Return values, copied; each call has its own transaction, so any thread may call."""
        with self.reading() as value:
            try:
                return [value(key.encode("ascii")) for key in keys]
            except self.error as error:
                raise self._damaged(error) from error

    @contextmanager
    def reading(self) -> Iterator[Callable[[bytes], bytes | None]]:
        """Give what returns values by their key, copied, from one transaction; what that raises is `error`."""
        try:
            transaction = self._env.begin()
        except self.error as error:
            raise self._damaged(error) from error
        with transaction:
            yield transaction.get

    def _damaged(self, error: Exception) -> DataError:
        return DataError(f"{self._path} is damaged ({error}): copy it again, or convert it again")

    def __contains__(self, key: str) -> bool:
        return self.get(key) != [None]

    def entries(self) -> int:
        """Return the number of keys."""
        count: int = self._env.stat()["entries"]
        return count

    def close(self) -> None:
        """Close the file."""
        if hasattr(self, "_env"):
            self._env.close()

    __del__ = close


# One environment for each file and process: LMDB refuses to open a file twice. The file's identity is part of the key,
# so an LMDB that was replaced under the same name is opened again.
_ENVIRONMENTS: weakref.WeakValueDictionary[tuple[int, int, int], _Environment] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def _leave_parents() -> None:
    """In a forked child: close what the parent had open, which lmdb would otherwise reuse."""
    global _LOCK
    _LOCK = threading.Lock()  # a thread of the parent may have held the old one
    for environment in list(_ENVIRONMENTS.values()):
        environment.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_parents)


def _open(folder: Path) -> _Environment:
    try:
        status = (folder / "data.mdb").stat()
    except OSError as error:
        raise DataError(f"{folder} holds no data.mdb: expected the folder of an LMDB") from error
    try:
        check_regular(status, folder / "data.mdb")
    except OSError as error:
        raise DataError(f"{folder} cannot be read as an LMDB: {explain(error)}") from error
    identity = (os.getpid(), status.st_dev, status.st_ino)
    with _LOCK:
        # Weak references: an environment is closed with the last source that uses it, and opened again for a new one.
        environment = _ENVIRONMENTS.get(identity)
        if environment is None:
            environment = _ENVIRONMENTS[identity] = _Environment(folder)
        return environment


def _layout(environment: _Environment, folder: Path) -> tuple[int, int, tuple[str, ...]]:
    """Return (first number, number of samples, notes)."""
    # 1. Where counting begins, and whether num-samples is one too low, as VietOCR writes it.
    count, entries = _count(environment, folder), environment.entries()
    if count > entries:
        raise DataError(f"{folder}: num-samples is {count:,}, and there are {entries:,} keys: convert the set again")
    base = 0 if "image-000000000" in environment else 1
    vietocr = base == 0 and "path-000000000" in environment
    notes = []
    if vietocr and f"image-{count:09d}" in environment:
        count += 1
        notes.append(f"num-samples says {count - 1}, as VietOCR counts, and there are {count}")
    if count == 0:
        raise DataError(f"{folder} is an LMDB without a sample (num-samples is 0)")
    # 2. The last sample has to exist; the ones before it are checked when they are read.
    last = f"image-{count - 1 + base:09d}"
    if last not in environment:
        raise DataError(f"{folder}: num-samples is {count}, and the key {last} is missing: convert the set again")
    # 3. Old keys: every sample has the same kinds of key, so any surplus belongs to samples beyond num-samples.
    kinds = sum(f"{kind}-{base:09d}" in environment for kind in ("image", "label", "path", "dim", "wh"))
    surplus = entries - 1 - kinds * count
    if surplus > 0:
        notes.append(f"{surplus} keys beyond num-samples are left over from an older conversion and not used")
    return base, count, tuple(notes)


def _count(environment: _Environment, folder: Path) -> int:
    (value,) = environment.get("num-samples")
    if value is None:
        raise DataError(f"{folder} is an LMDB without the key num-samples: expected the keys of CLOVA, TAO or VietOCR")
    text = value[:20].decode("ascii", "replace").strip()
    if not text.isascii() or not text.isdigit() or int(text) > _MAX_SAMPLES:
        raise DataError(f"{folder}: num-samples is {text!r}, and a number up to {_MAX_SAMPLES:,} was expected")
    return int(text)


class LmdbWriter:
    """A new LMDB in `folder`; use it in a `with` block and call `finish` at its end.

    The map grows by doubling: a fixed terabyte is what Windows and some containers refuse.

    Raises:
        OutputError: the place cannot be written.
        MissingExtraError: the package lmdb is absent.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise MissingExtraError("lmdb", "train", "writing an LMDB") from error
        self._lmdb = lmdb
        self._folder = make_folder(folder)
        self.count = 0
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        try:
            # Not synced before `finish`: until then the folder is temporary, and a crash discards it.
            self._env = lmdb.open(str(folder), map_size=_FIRST_MAP_BYTES, sync=False, metasync=False)
        except lmdb.Error as error:
            raise self._error(error) from error

    def add(self, image: bytes, label: str) -> None:
        """Append one sample."""
        self.count += 1
        # A transaction a sample would be slow, and one for all would hold everything in memory.
        self._pending.append((f"image-{self.count:09d}".encode(), image))
        self._pending.append((f"label-{self.count:09d}".encode(), label.encode("utf-8")))
        self._pending_bytes += len(image) + len(label)
        if self._pending_bytes >= _TRANSACTION_BYTES or len(self._pending) >= 2048:
            self._flush()

    def finish(self) -> None:
        """Write the rest and the count, and sync everything to the disk."""
        self._pending.append((b"num-samples", str(self.count).encode()))
        self._flush()
        try:
            self._env.sync(True)
        except self._lmdb.Error as error:
            raise self._error(error) from error

    def __enter__(self) -> LmdbWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._env.close()

    def _flush(self) -> None:
        while True:
            try:
                self._put(self._pending)
                break
            except self._lmdb.MapFullError:  # the transaction was rolled back, so all of it is put again
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except self._lmdb.Error as error:
                raise self._error(error) from error
        self._pending = []
        self._pending_bytes = 0

    def _put(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        with self._env.begin(write=True) as transaction:
            for key, value in pairs:
                transaction.put(key, value)

    def _error(self, error: Exception) -> OutputError:
        return OutputError(f"cannot write the LMDB {self._folder}: {error}; is the disk full or write-protected?")
