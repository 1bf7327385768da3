"""Writes an LMDB with TAO's and CLOVA's keys: `image-%09d`, `label-%09d` from 1, and `num-samples`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from inkmill.errors import MissingExtraError, OutputError
from inkmill.files import make_folder

_FIRST_MAP_BYTES = 64 << 20
_BATCH_BYTES = 32 << 20


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
        self._lmdb, self._folder, self.count = lmdb, make_folder(folder), 0
        self._held: list[tuple[bytes, bytes]] = []
        self._held_bytes = 0
        try:
            # Not synced on the way: until `finish` the folder is a temporary one that a crash throws away.
            self._env = lmdb.open(str(folder), map_size=_FIRST_MAP_BYTES, sync=False, metasync=False)
        except lmdb.Error as error:
            raise self._error(error) from error

    def add(self, image: bytes, label: str) -> None:
        """Append one sample."""
        self.count += 1
        self._held.append((f"image-{self.count:09d}".encode(), image))
        self._held.append((f"label-{self.count:09d}".encode(), label.encode("utf-8")))
        self._held_bytes += len(image) + len(label)
        if self._held_bytes >= _BATCH_BYTES or len(self._held) >= 2048:
            self._flush()

    def finish(self) -> None:
        """Write what is held and the count, and bring it all to the disk."""
        self._held.append((b"num-samples", str(self.count).encode()))
        self._flush()
        try:
            self._env.sync(True)
        except self._lmdb.Error as error:
            raise self._error(error) from error

    def __enter__(self) -> LmdbWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._env.close()

    def _flush(self) -> None:
        while True:
            try:
                self._put(self._held)
                break
            except self._lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except self._lmdb.Error as error:
                raise self._error(error) from error
        self._held, self._held_bytes = [], 0

    def _put(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        with self._env.begin(write=True) as transaction:
            for key, value in pairs:
                transaction.put(key, value)

    def _error(self, error: Exception) -> OutputError:
        return OutputError(f"cannot write the LMDB {self._folder}: {error}; is the disk full or write-protected?")
