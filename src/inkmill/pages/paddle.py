"""PaddleOCR's ONNX files as detector and line reader: DB text detection and CTC recognition, as RapidOCR ships them.

What such files expect is nowhere in them, so it stands here: BGR in -1..1; of the detector sides that are multiples
of 32 and one map of text probability; of the reader lines of 48 rows, classes `blank, characters of the metadata,
space`. Liao et al. 2020 ("Real-time scene text detection with differentiable binarization") for the map: a region is
a shrunk one, grown back by area x ratio / perimeter, which for a rectangle needs no polygon clipping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.resize import resize
from inkmill.errors import ModelFileError, first_line
from inkmill.modelfile.onnx_file import read_outline
from inkmill.pages.models import Image, InputSize, LineText
from inkmill.runtime.onnx import file_content, open_session

MULTIPLE = 32
"""Sides of a detector's input are multiples of it, and widths of a reader's."""
SHORT_SIDE = 736
"""Smaller pictures are enlarged to it (by LARGEST_SCALE at most), as these detectors were trained."""
LARGEST_SCALE = 2.0
MOST_PIXELS = 1_600_000
"""Of a page; a larger one is shrunk to it. A4 has 130 dpi then, where lines of 6 points are still found."""
STRIP_PIXELS, STRIP_MARGIN = 800_000, 96
"""Of one run, which takes 200 bytes a pixel, and how many pixels two neighbouring runs see of each other."""
MAP_THRESHOLD, BOX_THRESHOLD, UNCLIP_RATIO = 0.3, 0.5, 1.6
"""PaddleOCR's own for PP-OCRv6: text in the map, mean of a region, and how far regions grow."""
SMALLEST = 3
"""Pixels of the map; thinner regions are noise."""

_READER_HEIGHT = 48
_LONGEST = 80.0
_SQUEEZE = ([12.0, 24.0], [1.0, 0.8])
"""Width over height of a line, and what its width is multiplied by: long lines are running text, which is read as well
a fifth narrower, in a fifth less time. On drawn pages of both kinds every text stayed the same."""


class PaddleRegion(NamedTuple):
    """A rectangle of text.

    Attributes:
        points: float32 (4, 2), in pixels of the image.
        score: mean probability inside, 0..1.
    """

    points: NDArray[np.float32]
    score: float


def is_paddle(path: str | Path) -> bool:
    """Return whether a file is an ONNX file that inkmill did not write.

    Raises:
        ModelFileError: no such file, or no ONNX file.
    """
    if Path(path).suffix != ".onnx":
        return False
    return "inkmill" not in read_outline(file_content(Path(path)), str(path))[0]


class _Session:
    """One input, one output, BGR in -1..1."""

    def __init__(self, path: str | Path, device: str | None, threads: int | None) -> None:
        self.where = str(path)
        content = file_content(Path(path))
        self.metadata, has_half = read_outline(content, self.where)
        self._run, self.runs_on = open_session(content, self.where, device, threads, has_half, many_sizes=True)
        inputs, outputs = self._run.get_inputs(), self._run.get_outputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[1] != 3:
            raise ModelFileError(f"{path}: not a model of PaddleOCR's form (one input, three channels)")
        self._input, self._outputs = inputs[0].name, [output.name for output in outputs[:1]]
        self.axes = len(outputs[0].shape)

    def __call__(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        try:
            found: NDArray[np.float32] = self._run.run(self._outputs, {self._input: pixels})[0]
        except Exception as error:  # onnxruntime's errors share no public base
            raise ModelFileError(f"{self.where}: cannot be run ({first_line(error)})") from error
        if not np.isfinite(found.sum(dtype=np.float64)):
            raise ModelFileError(f"{self.where}: gives outputs that are no numbers: its weights are damaged")
        return found


class PaddleDetector:
    """Finds lines with a DB detector; several threads may use one.

    Args:
        path: an ONNX file with one input (B, 3, H, W) and one output (B, 1, H, W).
        device: as for `inkmill.load`.
        threads: on the CPU; by default one a core.

    Raises:
        ModelFileError: missing, damaged, or of another form.
    """

    def __init__(self, path: str | Path, device: str | None = None, threads: int | None = None) -> None:
        self._session = _Session(path, device, threads)
        if self._session.axes != 4:
            raise ModelFileError(f"{path}: gives no map of text probability; a detector is expected here")

    def detect(self, images: Sequence[Image]) -> list[list[PaddleRegion]]:
        """Return the regions of each uint8 (H, W, 3) RGB image."""
        return [self._detect(image) for image in images]

    def _detect(self, image: Image) -> list[PaddleRegion]:
        # 1. The input's size: a small picture is enlarged, a large one shrunk, both sides become multiples of 32.
        height, width = image.shape[:2]
        scale = min(max(1.0, SHORT_SIDE / min(height, width)), LARGEST_SCALE)
        scale = min(scale, math.sqrt(MOST_PIXELS / (height * width)))
        columns, rows = (max(MULTIPLE, round(side * scale / MULTIPLE) * MULTIPLE) for side in (width, height))
        # 2. The map.
        probability = self._map(resize(image, columns, rows))
        # 3. Its regions, in pixels of the image.
        grid = np.array([width / columns, height / rows], np.float32)
        return [PaddleRegion(points * grid, score) for points, score in rectangles(probability)]

    def _map(self, image: Image) -> NDArray[np.float32]:
        """Return the probability of text, (H, W): in strips where the image is large, so that memory is bounded."""
        height, width = image.shape[:2]
        if height * width <= STRIP_PIXELS:
            whole: NDArray[np.float32] = self._session(_to_input(image[None]))[0, 0]
            return whole
        if width > height:
            return np.ascontiguousarray(self._map_of_strips(image, axis=1))
        return self._map_of_strips(image, axis=0)

    def _map_of_strips(self, image: Image, axis: int) -> NDArray[np.float32]:
        length, across = image.shape[axis], image.shape[1 - axis]
        count = -(-length * across // STRIP_PIXELS)
        inner = -(-length // count // MULTIPLE) * MULTIPLE
        found = []
        for start in range(0, length, inner):
            end = min(start + inner, length)
            low, high = max(start - STRIP_MARGIN, 0), min(end + STRIP_MARGIN, length)
            seen = image[low:high] if axis == 0 else image[:, low:high]
            strip = self._session(_to_input(seen[None]))[0, 0]
            kept = slice(start - low, end - low)
            found.append(strip[kept] if axis == 0 else strip[:, kept])
        return np.concatenate(found, axis=axis)


def rectangles(
    probability: NDArray[np.float32], box_threshold: float = BOX_THRESHOLD, unclip_ratio: float = UNCLIP_RATIO
) -> list[PaddleRegion]:
    """Return the rectangles of text of a map of probability.

    Args:
        probability: float32 (H, W), 0..1.
        box_threshold: the smallest mean of a region.
        unclip_ratio: how far regions grow: area x ratio / perimeter at each side.
    """
    text = (probability > MAP_THRESHOLD).astype(np.uint8)
    text = cv2.dilate(text, np.ones((2, 2), np.uint8))  # type: ignore[assignment]
    contours, _ = cv2.findContours(text, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for contour in contours:
        centre, (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < SMALLEST:
            continue
        score = _mean_inside(probability, cv2.boxPoints((centre, (width, height), angle)))
        if score < box_threshold:
            continue
        grow = width * height * unclip_ratio / (width + height)  # both sides: 2 x area x ratio / perimeter
        grown = cv2.boxPoints((centre, (width + grow, height + grow), angle))
        found.append(PaddleRegion(np.asarray(grown, np.float32), score))
    return found


def _mean_inside(probability: NDArray[np.float32], corners: Any) -> float:
    low = np.maximum(np.floor(corners.min(axis=0)).astype(int), 0)
    high = np.ceil(corners.max(axis=0)).astype(int) + 1
    window = probability[low[1] : high[1], low[0] : high[0]]
    mask = np.zeros(window.shape, np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], (1,))
    return float(cv2.mean(window, mask)[0])


class PaddleReader:
    """Reads lines with a CTC recogniser; several threads may use one.

    Args:
        path: an ONNX file with one input (B, 3, 48, W), one output (B, T, K) and its characters in the metadata.
        device: as for `inkmill.load`.
        threads: on the CPU; by default one a core.

    Raises:
        ModelFileError: missing, damaged, of another form, or without its characters.
    """

    channels = 3
    longest = _LONGEST

    def __init__(self, path: str | Path, device: str | None = None, threads: int | None = None) -> None:
        self._session = _Session(path, device, threads)
        characters = self._session.metadata.get("character")
        if self._session.axes != 3 or not characters:
            raise ModelFileError(
                f"{path}: no text recogniser with its characters in its metadata; RapidOCR's ONNX files have them"
            )
        self._classes = ["", *characters.splitlines(), " "]

    def input_size(self, width: float, height: float) -> InputSize:
        """See LineReader."""
        ratio = width / height
        ratio *= float(np.interp(ratio, *_SQUEEZE))
        valid = max(int(np.ceil(_READER_HEIGHT * ratio)), 1)
        return InputSize(max(-(-valid // MULTIPLE) * MULTIPLE, 2 * MULTIPLE), _READER_HEIGHT, valid)

    def read_lines(self, images: Image, valid: NDArray[np.int32]) -> list[LineText]:
        """See LineReader."""
        pixels = _to_input(images)
        for row, end in enumerate(valid.tolist()):  # these models were trained with gray beside short lines
            pixels[row, :, :, end:] = 0
        probabilities = self._session(pixels)
        if probabilities.shape[2] > len(self._classes):
            raise ModelFileError(
                f"{self._session.where}: its graph has {probabilities.shape[2]} classes, and its metadata "
                f"{len(self._classes)} characters"
            )
        best = probabilities.argmax(axis=2)
        highest = np.take_along_axis(probabilities, best[:, :, None], 2)[:, :, 0]
        return [self._text(*line, images.shape[2]) for line in zip(best, highest, strict=True)]

    def _text(self, ids: NDArray[np.int64], probabilities: NDArray[np.float32], width: int) -> LineText:
        """Return the text of one line: equal neighbours are one character, class 0 is none."""
        changes = np.flatnonzero(np.diff(ids)) + 1
        firsts, ends = np.append(0, changes), np.append(changes, len(ids))
        written = ids[firsts] > 0
        firsts, ends = firsts[written], ends[written]
        characters = [self._classes[number] for number in ids[firsts].tolist()]
        counts = [len(character) for character in characters]  # a class may be several code points
        column = width / len(ids)
        return LineText(
            "".join(characters),
            np.repeat(probabilities[firsts], counts),
            np.repeat(firsts * column, counts).astype(np.float32),
            np.repeat(ends * column, counts).astype(np.float32),
        )


def _to_input(images: Image) -> NDArray[np.float32]:
    """Return float32 (B, 3, H, W) BGR in -1..1 of uint8 RGB images."""
    pixels = np.ascontiguousarray(images[..., ::-1].transpose(0, 3, 1, 2), np.float32)
    pixels -= 127.5
    pixels /= 127.5
    return pixels
