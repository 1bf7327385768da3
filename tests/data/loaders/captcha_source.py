"""A source over the captchas, and its ways to fail. A module of its own, so that worker processes can import it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from inkmill.data.sources import Source
from inkmill.data.types import Labels, Polygons, Target, Text
from inkmill.errors import DataError


@dataclass
class CaptchaSource(Source):
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

    def image(self, index: int) -> bytes:
        if index in self.deadly and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.buggy:
            raise ZeroDivisionError("a bug in a source")
        image = (self.folder / self.names[index]).read_bytes()
        return image[:50] if index in self.broken else image


@dataclass
class MissingSource(CaptchaSource):
    """Its images are gone."""

    def image(self, index: int) -> bytes:
        raise DataError(f"{self.names[index]} is gone")


@dataclass
class PaintedSource(Source):
    """Drawn pictures with targets of three kinds by turns. Where they are polygons, the first one is painted red.

    Besides that one each such picture has a region to ignore, one without area and one outside.
    """

    count: int
    fingerprint: str = "paint"
    name: str = "painted"

    def __len__(self) -> int:
        return self.count

    def key(self, index: int) -> str:
        return f"{index}.png"

    def size(self, index: int) -> tuple[int, int]:
        return 150 + 7 * index, 90 + 3 * index

    def corners(self, index: int) -> np.ndarray:
        shares = [(0.25, 0.3), (0.7, 0.25), (0.75, 0.7), (0.2, 0.65)]
        return np.rint(np.array(shares) * self.size(index)).astype(np.float32)

    def target(self, index: int) -> Target:
        if index % 3 == 1:
            return Text(f"text {index}")
        if index % 3 == 2:
            return Labels(("odd",) if index % 2 else ("even", "drawn"))
        aside = np.array([(5, 5), (25, 5), (25, 20)], np.float32)
        line = np.array([(1, 1), (50, 50), (99, 99)], np.float32)
        return Polygons(
            (line, aside, self.corners(index), aside - 60),
            (False, True, False, False),
            ("line", "", "painted", "outside"),
        )

    def image(self, index: int) -> bytes:
        width, height = self.size(index)
        image = np.full((height, width, 3), (120, 120, 60), np.uint8)
        if index % 3 == 0:
            cv2.fillPoly(image, [self.corners(index).astype(np.int32)], (0, 0, 250))
        return cv2.imencode(".png", image)[1].tobytes()


@dataclass
class SlowSource(CaptchaSource):
    """Its disk takes a while for each image."""

    pause_s: float = 0.003

    def image(self, index: int) -> bytes:
        time.sleep(self.pause_s)
        return super().image(index)


class SlowPipeline:
    """Stands where foreign augmentation code does, and takes a while for each batch."""

    kind = "code"

    def apply(self, images: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> np.ndarray:
        time.sleep(0.15)
        return images
