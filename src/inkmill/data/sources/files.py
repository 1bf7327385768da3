"""Image files without labels, as a source: what `infer` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from inkmill.data.sources.base import Source, check_image_bytes
from inkmill.data.sources.packed import PackedStrings
from inkmill.data.types import Text
from inkmill.errors import DataError


class FileSource(Source):
    """Image files in the order given; every target is an empty Text.

    Args:
        paths: the files; each is its own key.
    """

    small_files = True

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__("images")
        self._paths = PackedStrings(str(path) for path in paths)

    def __len__(self) -> int:
        return len(self._paths)

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        path = Path(self.key(index))
        try:
            check_image_bytes(path.stat().st_size, str(path))
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self._paths[self._checked(index)]

    def files(self, index: Sequence[int]) -> list[Path]:
        """See `Source.files`."""
        return [Path(self.key(i)) for i in index]

    def target(self, index: int) -> Text:
        """See `Source.target`."""
        return Text("")

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        digest = hashlib.blake2b(digest_size=16)
        self._paths.hash_into(digest)
        return digest.hexdigest()
