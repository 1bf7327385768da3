"""A disk that is slow on purpose: first reads wait, as a slow disk's do, until `forget()` empties its page cache."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.sources import Source
from inkmill.data.types import Target


class SlowDisk(Source):
    """A source whose reads wait `latency_s` the first time and not again: the page cache is a file of flags.

    The flags lie in a file, so that all processes share them. Waiting is sleeping: it takes no core, as a disk's does.

    Args:
        source: where the samples come from.
        latency_s, bytes_per_s: a first read takes `latency_s + bytes / bytes_per_s` longer.
        flags: the file of the flags; made, or overwritten.
    """

    small_files = True
    """Its samples are slow one by one, as files of their own are."""

    def __init__(self, source: Source, latency_s: float, flags: Path, bytes_per_s: float = np.inf) -> None:
        super().__init__(source.name)
        self.source, self.latency_s, self.bytes_per_s = source, latency_s, bytes_per_s
        np.lib.format.open_memmap(flags, "w+", np.uint8, (len(source),))[:] = 0
        self.flags = flags
        self._opened: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        data = self.source.image(index)
        cached = self._cached()
        if not cached[index]:
            cached[index] = 1
            time.sleep(self.latency_s + len(data) / self.bytes_per_s)
        return data

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self.source.key(index)

    def target(self, index: int) -> Target:
        """See `Source.target`."""
        return self.source.target(index)

    def files(self, index: object) -> list[Path]:
        """See `Source.files`."""
        return self.source.files(list(index))  # type: ignore[call-overload]

    def forget(self) -> None:
        """Empty the page cache of this source."""
        self._cached()[:] = 0

    def _cached(self) -> NDArray[np.uint8]:
        if self._opened is None:
            self._opened = np.load(self.flags, mmap_mode="r+")
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return f"slow {self.source.fingerprint}"
