"""A source over the captchas, and its ways to fail. A module of its own, so that worker processes can import it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from inkmill.data.sample import Sample, Target, Text
from inkmill.errors import DataError


@dataclass
class CaptchaSource:
    folder: Path
    names: list[str]
    broken: frozenset[int] = frozenset()  # samples whose image is cut short
    deadly: frozenset[int] = frozenset()  # samples that kill the process which reads them
    buggy: frozenset[int] = frozenset()  # samples that meet a bug
    fingerprint: str = "f00d"
    name: str = "captchas"
    parent: int = field(default_factory=os.getpid)

    @classmethod
    def first(cls, folder: Path, count: int, **faults: frozenset[int]) -> CaptchaSource:
        lines = (folder / "labels.tsv").read_text().splitlines()
        return cls(folder, [line.split("\t")[0] for line in lines[:count]], **faults)

    def __len__(self) -> int:
        return len(self.names)

    def key(self, index: int) -> str:
        return self.names[index]

    def target(self, index: int) -> Target:
        return Text(Path(self.names[index]).name.split(".")[0])

    def get(self, index: int) -> Sample:
        if index in self.deadly and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.buggy:
            raise ZeroDivisionError("a bug in a source")
        image = (self.folder / self.names[index]).read_bytes()
        return Sample(self.key(index), image[:50] if index in self.broken else image, self.target(index))


@dataclass
class MissingSource(CaptchaSource):
    """Its images are gone."""

    def get(self, index: int) -> Sample:
        raise DataError(f"{self.names[index]} is gone")
