"""What a page reader asks of its two networks, and the one that inkmill's own readers answer through.

A detector gives regions, a line reader gives the text of upright lines with the place of every character. Anything
that fits `LineDetector` or `LineReader` can be handed to `PageReader`: inkmill's own models, PaddleOCR's ONNX files
(paddle.py), or an object of yours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inkmill import weights
from inkmill.errors import ConfigError, InkmillError
from inkmill.runtime.reader import BaseReader, load_reader, refuse_nan

Image = NDArray[np.uint8]


class Found(Protocol):
    """A region of text: what `inkmill.runtime.Detector` calls a Region."""

    @property
    def points(self) -> NDArray[np.float32]:
        """The corners, (N, 2), in pixels of the image."""
        ...

    @property
    def score(self) -> float:
        """How sure the detector is, 0..1."""
        ...


@runtime_checkable
class LineDetector(Protocol):
    """Finds text; several threads may call it."""

    def detect(self, images: Sequence[Image]) -> Sequence[Sequence[Found]]:
        """Return the regions of each uint8 (H, W, 3) RGB image."""
        ...


class InputSize(NamedTuple):
    """What a line looks like to a reader.

    Attributes:
        width: columns of the input, padding included.
        height: rows of the input.
        valid: columns that hold the line.
    """

    width: int
    height: int
    valid: int


@dataclass(frozen=True, slots=True, eq=False)
class LineText:
    """What a reader says of one line.

    Attributes:
        text: the characters.
        probabilities: float32 (len(text),), 0..1.
        starts: float32 (len(text),), where each begins, in columns of the input.
        ends: float32 (len(text),), where each ends.
    """

    text: str
    probabilities: NDArray[np.float32]
    starts: NDArray[np.float32]
    ends: NDArray[np.float32]

    @property
    def confidence(self) -> float:
        """Mean probability of the characters; 0 where there is none."""
        return float(self.probabilities.mean()) if self.text else 0.0


@runtime_checkable
class LineReader(Protocol):
    """Reads upright lines; several threads may call it.

    Attributes:
        channels: 1 for gray, 3 for RGB input.
        longest: the longest line that is read at once, as width over height; longer ones are read in parts.
    """

    channels: int
    longest: float

    def input_size(self, width: float, height: float) -> InputSize:
        """Return the input for a line of so many pixels."""
        ...

    def read_lines(self, images: Image, valid: NDArray[np.int32]) -> Sequence[LineText]:
        """Return the text of uint8 (B, H, W, channels) lines of one size.

        Args:
            images: the lines, from the left; what is right of them repeats their last column.
            valid: (B,), how many columns each line fills.
        """
        ...


class OwnLineReader:
    """A text reader of inkmill, its head CTC, as a LineReader.

    Args:
        reader: what `inkmill.load` returns.

    Raises:
        ConfigError: it reads no text, or its head does not say where characters stand.
    """

    def __init__(self, reader: BaseReader) -> None:
        if not hasattr(reader.decoder, "located") or reader.task.head != "CTC":
            raise ConfigError(
                f"reading pages needs a model that reads text with a CTC head; this is a {reader.task.noun}"
            )
        self._reader, self._resize = reader, reader.resize
        self.channels: int = reader.resize.channels
        self.longest = max(reader.resize.width / reader.resize.height, 1.0)

    def input_size(self, width: float, height: float) -> InputSize:
        """See LineReader."""
        # In eighths of a pixel: lines of a page have no whole numbers.
        columns, rows = max(round(width * 8), 1), max(round(height * 8), 1)
        resize = self._resize
        bucket = resize.bucket_width(columns, rows)
        return InputSize(bucket, resize.rows(bucket), resize.valid_width(columns, rows))

    def read_lines(self, images: Image, valid: NDArray[np.int32]) -> Sequence[LineText]:
        """See LineReader."""
        decoder: Any = self._reader.decoder
        outputs = self._reader.outputs(images, decoder.needs)
        refuse_nan(outputs)
        width = images.shape[2]
        return [
            LineText(one.text, one.probabilities, one.starts * width, one.ends * width)
            for one in decoder.located(outputs)
        ]


def open_line_reader(given: Any, threads: int | None = None) -> LineReader:
    """Return the LineReader of a file, of a reader of inkmill, or of an object that is one; None: the shipped weights.

    Raises:
        InkmillError: no such file, a damaged one, or one that reads no text.
    """
    if given is None:
        given = _shipped("reader")
    if isinstance(given, str | Path):
        from inkmill.pages.paddle import PaddleReader, is_paddle

        given = PaddleReader(given, threads=threads) if is_paddle(given) else _own(given, threads)
    if isinstance(given, BaseReader):
        return OwnLineReader(given)
    if isinstance(given, LineReader):
        return given
    raise ConfigError(f"reader={given!r}: expected a model file, a reader of inkmill, or an object with read_lines")


def open_detector(given: Any, threads: int | None = None) -> LineDetector:
    """Return the LineDetector of a file or of an object that is one; None: the shipped weights.

    Raises:
        InkmillError: no such file, a damaged one, or one that finds no text.
    """
    if given is None:
        given = _shipped("detector")
    if isinstance(given, str | Path):
        from inkmill.pages.paddle import PaddleDetector, is_paddle

        if is_paddle(given):
            return PaddleDetector(given, threads=threads)
        given = _own_detector(given, threads)
    if isinstance(given, LineDetector):
        return given
    raise ConfigError(f"detector={given!r}: expected a model file or an object with detect")


def _own(path: str | Path, threads: int | None) -> BaseReader:
    if str(path).endswith(".onnx"):
        from inkmill.runtime.onnx import OnnxReader

        return OnnxReader(path, threads=threads)
    return load_reader(path)


def _own_detector(path: str | Path, threads: int | None) -> LineDetector:
    try:
        from inkmill import runtime

        detector: LineDetector = runtime.Detector(path, threads=threads)
    except AttributeError as error:
        raise ConfigError(
            f"{path}: this inkmill reads no detectors of its own yet; give PaddleOCR's ONNX file as --detector"
        ) from error
    return detector


def _shipped(what: str) -> Path:
    try:
        return weights.path(what)
    except InkmillError as error:
        raise ConfigError(
            f"this inkmill carries no {what}; give one: --detector FILE and --reader FILE (PaddleOCR's or RapidOCR's "
            "ONNX files, or your own from `inkmill export`)"
        ) from error
