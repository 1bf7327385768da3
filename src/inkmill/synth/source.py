"""Synthetic samples as a data set: what a machine without a GPU trains on, and what `inkmill synth` keeps.

A sample is drawn at its natural size and encoded as an image file, so everything that works with files works with it.
Batches ask for many samples at a time, which are sampled together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.cpu import apply_cv
from inkmill.data.sources.base import Source, fingerprint
from inkmill.data.types import Sample, Target, Text, Texts
from inkmill.synth.engine import Settings, SynthEngine, open_engine
from inkmill.synth.params import SynthParams

HEIGHT = 48
"""Rows of a sample's image, in pixels: what the letters are kept at."""
MOST_COLUMNS = HEIGHT * 48
_TOGETHER = 256  # samples that are sampled at once

Encoding = Literal["png", "jpeg"]


class SyntheticSource(Source):
    """Synthetic samples as files.

    Args:
        settings: what to draw.
        count: samples of the set.
        seed: another one gives other samples.
        encoding: of the images; "jpeg" is smaller, and what is kept.
        name: see Source.

    Raises:
        InkmillError: see SynthEngine; fonts and texts are opened when the first sample is asked for.
    """

    def __init__(
        self, settings: Settings, count: int, seed: int, encoding: Encoding = "png", name: str = "synthetic"
    ) -> None:
        super().__init__(name)
        self.settings, self.count, self.seed, self.encoding = settings, count, seed, encoding

    def __len__(self) -> int:
        return self.count

    @property
    def together(self) -> bool:
        """See Source."""
        return True

    @property
    def engine(self) -> SynthEngine:
        """What draws; opened once a process."""
        return open_engine(self.settings)

    @cached_property
    def fingerprint(self) -> str:
        """See Source.fingerprint."""
        return fingerprint(self.settings.digest, str((self.count, self.seed, self.encoding)))

    @property
    def identity(self) -> str:
        """See Source.identity."""
        return self.fingerprint

    def key(self, index: int) -> str:
        """See Source.key."""
        return f"synthetic-{self.seed}/{self._checked(index):09}.{'jpg' if self.encoding == 'jpeg' else 'png'}"

    def target(self, index: int) -> Target:
        """See Source.target."""
        return Text(self._rows([self._checked(index)]).texts[0])

    def image(self, index: int) -> bytes:
        """See Source.image."""
        return self._encoded(self._rows([self._checked(index)]), 0)

    def described(self, index: Sequence[int]) -> tuple[list[str], list[Target]]:
        """See Source.described."""
        keys = [self.key(i) for i in index]
        return keys, list(Texts([text for rows in self._parts(index) for text in rows.texts]))

    @contextmanager
    def reading(self, index: Sequence[int] = ()) -> Iterator[Callable[[int], Sample]]:
        """See Source.reading; the samples of `index` are sampled together."""
        known = {i: (rows, number) for rows in self._parts(index) for number, i in enumerate(rows.index)}

        def get(index: int) -> Sample:
            rows, number = known.get(index) or (self._rows([self._checked(index)]), 0)
            return Sample(self.key(index), self._encoded(rows, number), Text(rows.texts[number]))

        yield get

    def get(self, index: int) -> Sample:
        """See Source.get."""
        rows = self._rows([self._checked(index)])
        return Sample(self.key(index), self._encoded(rows, 0), Text(rows.texts[0]))

    def sizes(self) -> NDArray[np.int32]:
        """Return width and height of every image: int32 (N, 2)."""
        parts = [_sizes(rows.params) for rows in self._parts(range(len(self)))]
        return np.concatenate(parts)

    def _parts(self, index: Sequence[int]) -> Iterator[_Rows]:
        for start in range(0, len(index), _TOGETHER):
            yield self._rows([int(i) for i in index[start : start + _TOGETHER]])

    def _rows(self, index: list[int]) -> _Rows:
        engine = self.engine
        params = engine.rows(self.seed, np.array(index, np.int64))
        return _Rows(index, params, engine.strings(params.codes))

    def _encoded(self, rows: _Rows, number: int) -> bytes:
        one = rows.params.rows(slice(number, number + 1))
        width, height = _sizes(one)[0].tolist()
        images = self.engine.images(one, height, width)
        if (changes := self.engine.changes) is not None:
            index = np.array(rows.index[number : number + 1], np.int64)
            images = apply_cv(images, changes.sample(self.seed, 0, index, height, width))
        image = images[0][..., ::-1]
        options = [cv2.IMWRITE_JPEG_QUALITY, 92] if self.encoding == "jpeg" else [cv2.IMWRITE_PNG_COMPRESSION, 1]
        _, data = cv2.imencode(".jpg" if self.encoding == "jpeg" else ".png", np.ascontiguousarray(image), options)
        return bytes(data)


@dataclass(frozen=True, eq=False)
class _Rows:
    index: list[int]
    params: SynthParams
    texts: list[str]


def _sizes(params: SynthParams) -> NDArray[np.int32]:
    """Return width and height of the images of rows: int32 (B, 2)."""
    widths = np.rint(HEIGHT * params["aspect"]).clip(4, MOST_COLUMNS)
    return np.stack([widths, np.full_like(widths, HEIGHT)], axis=1).astype(np.int32)
