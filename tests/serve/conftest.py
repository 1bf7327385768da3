"""Pages in a script of bars that two small networks' stand-ins read exactly: what a server does to them is what is
tested here.

A character is a column of ten cells, black for 1: the outer two always, the others its code's bits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from inkmill.pages.models import InputSize, LineText
from inkmill.pages.reader import PageReader

CELL, STEP, ROWS = 4, 12, 10
HEIGHT = CELL * ROWS


class Region(NamedTuple):
    points: np.ndarray
    score: float


class BarDetector:
    """Finds lines of bars: what is dark, joined across the gaps between characters."""

    def detect(self, images: Sequence[np.ndarray]) -> list[list[Region]]:
        return [self._one(image) for image in images]

    def _one(self, image: np.ndarray) -> list[Region]:
        dark = (cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) < 128).astype(np.uint8)
        joined = cv2.morphologyEx(dark, cv2.MORPH_CLOSE, np.ones((HEIGHT - 1, STEP), np.uint8))
        _, _, stats, _ = cv2.connectedComponentsWithStats(joined)
        boxes = [(x, y, x + w, y + h) for x, y, w, h, _ in stats[1:].tolist() if h >= HEIGHT // 2]
        return [Region(np.array([[l, t], [r, t], [r, b], [l, b]], np.float32), 1.0) for l, t, r, b in boxes]  # noqa: E741


class BarReader:
    """Reads lines of bars."""

    channels, longest = 1, 1000.0

    def input_size(self, width: float, height: float) -> InputSize:
        wide = max(1, round(width / height * HEIGHT))
        return InputSize(wide, HEIGHT, wide)

    def read_lines(self, images: np.ndarray, valid: np.ndarray) -> list[LineText]:
        return [self._one(image[:, :columns, 0]) for image, columns in zip(images, valid.tolist(), strict=True)]

    def _one(self, image: np.ndarray) -> LineText:
        rows = (np.arange(1, ROWS - 1) * CELL + CELL // 2).tolist()
        starts = np.arange(0, image.shape[1] - CELL, STEP)
        codes = [sum((image[row, start + CELL] < 128) << bit for bit, row in enumerate(rows)) for start in starts]
        text = "".join(map(chr, codes))
        return LineText(text, np.ones(len(text), np.float32), starts.astype(np.float32), starts + np.float32(2 * CELL))


def page_of(*lines: str) -> np.ndarray:
    """Return a page, uint8 (H, W, 3), with lines of bars."""
    width = max([STEP * len(line) for line in lines], default=0) + 80
    page = np.full((80 * len(lines) + 80, width, 3), 255, np.uint8)
    for number, line in enumerate(lines):
        for place, character in enumerate(line):
            bits = [1, *(ord(character) >> bit & 1 for bit in range(8)), 1]
            for row, bit in enumerate(bits):
                x, y = 40 + STEP * place, 60 + 80 * number + CELL * row
                page[y : y + CELL, x : x + 2 * CELL] = 0 if bit else 255
    return page


def png(*lines: str) -> bytes:
    """Return such a page as PNG."""
    return cv2.imencode(".png", page_of(*lines))[1].tobytes()


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(root / "src")))}
    command = [sys.executable, str(Path(__file__).parent / "child.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[0]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def reader() -> PageReader:
    return PageReader(BarDetector(), BarReader())
