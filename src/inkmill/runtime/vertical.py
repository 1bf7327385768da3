"""Tall pictures of text are read three ways: as they are, and turned to either side; the surest answer counts.

Words on signs and spines stand upright one below the other, or lie on their side, and nothing but the reading tells.
A picture is tall where it is more than 1.5 times as high as wide: no other picture costs more than before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.decode import decode, image_size
from inkmill.data.sources import Source
from inkmill.data.sources.base import fingerprint
from inkmill.data.types import Sample, Target
from inkmill.errors import DataError
from inkmill.tasks.base import Prediction, Task

TALL = 1.5
_QUARTERS = (1, 3)
_PART = 512  # samples a thread's task


def is_tall(width: int, height: int) -> bool:
    """Return whether a picture of this size is read three ways."""
    return height > TALL * width


def turned(image: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """Return a picture (H, W, C) turned by a quarter to the left, and to the right."""
    return [np.ascontiguousarray(np.rot90(image, quarters)) for quarters in _QUARTERS]


def surer(task: Task, before: Prediction | None, now: Prediction) -> Prediction:
    """Return the surer of two answers for one picture; the first of equals."""
    if before is None:
        return now
    return now if (task.sureness(now) or 0) > (task.sureness(before) or 0) else before


class BothWays:
    """The samples of a source, each tall one followed by itself turned, and the way back to one answer for each.

    Args:
        source: the samples.
        task: what is read.
        channels: of the images that the model reads.
        wanted: False leaves all as they are.

    Attributes:
        source: what is to be read.
    """

    def __init__(self, source: Source, task: Task, channels: Literal[1, 3], wanted: bool = True) -> None:
        self._task = task
        tall = _tall_samples(source) if wanted and task.reads_on_its_side else np.empty(0, np.int64)
        ways = np.ones(len(source), np.int64)
        ways[tall] += len(_QUARTERS)
        self._sample = np.repeat(np.arange(len(source)), ways)
        self.source = _WithTurned(source, self._sample, channels) if len(tall) else source
        self._waiting: dict[int, tuple[int, Prediction | None]] = {
            index: (1 + len(_QUARTERS), None) for index in tall.tolist()
        }

    def take(self, index: int, prediction: Prediction) -> tuple[int, Prediction] | None:
        """Take the answer for sample `index` of `source`; return that of the picture once all its ways are read."""
        index = int(self._sample[index])
        if index not in self._waiting:
            return index, prediction
        left, before = self._waiting[index]
        best = surer(self._task, before, prediction)
        self._waiting[index] = left - 1, best
        return (index, best) if left == 1 else None


def _tall_samples(source: Source) -> NDArray[np.int64]:
    """Return which samples are tall, by the headers of their images; what cannot be read is not."""

    def tall(index: int) -> bool:
        try:
            return is_tall(*image_size(source.image(index)))
        except (DataError, OSError):
            return False

    def part(start: int) -> list[int]:
        return [index for index in range(start, min(start + _PART, len(source))) if tall(index)]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return np.array([index for found in pool.map(part, range(0, len(source), _PART)) for index in found], np.int64)


class _WithTurned(Source):
    """A source in which tall pictures come several times in a row: as they are, then turned.

    Args:
        source: the pictures.
        sample: int64 (N,), which of them each sample here is, in order.
        channels: of the images that the model reads.
    """

    def __init__(self, source: Source, sample: NDArray[np.int64], channels: Literal[1, 3]) -> None:
        super().__init__(source.name, source.notes)
        self._source, self._sample, self._channels = source, sample, channels

    def __len__(self) -> int:
        return len(self._sample)

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the sample of the source, and which turn: 0 is none."""
        inner = int(self._sample[index])
        return inner, index - int(np.searchsorted(self._sample, inner))

    def image(self, index: int) -> bytes:
        inner, turn = self._locate(index)
        return self._turned(self._source.image(inner), turn)

    def key(self, index: int) -> str:
        return self._source.key(self._locate(index)[0])

    def target(self, index: int) -> Target:
        return self._source.target(self._locate(index)[0])

    @contextmanager
    def reading(self, index: Sequence[int] = ()) -> Iterator[Callable[[int], Sample]]:
        with self._source.reading([self._locate(one)[0] for one in index]) as get:

            def get_turned(index: int) -> Sample:
                inner, turn = self._locate(index)
                sample = get(inner)
                return Sample(sample.key, self._turned(sample.image, turn), sample.target) if turn else sample

            yield get_turned

    def _turned(self, data: bytes, turn: int) -> bytes:
        if not turn:
            return data
        image = turned(decode(data, self._channels))[turn - 1]
        pixels = image if self._channels == 1 else image[:, :, ::-1]
        return cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 0])[1].tobytes()

    @property
    def fingerprint(self) -> str:
        return fingerprint("turned", self._source.fingerprint)

    def parts(self) -> tuple[Source, ...]:
        return (self._source,)
