"""JPEG word crops to measure with when the user gives none: the same bytes on every machine with the same OpenCV.

What decoding costs depends on the size of picture and file, so these follow real word crops: 20 to 64 pixels high,
as wide as their word, colour, JPEG quality 90, about 2.7 kB on average. Words in Hershey strokes stand on shaded paper
with a little grain; without that grain JPEG would shrink them to a third of a real crop.
"""

from __future__ import annotations

import string
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

POOL = 4096
"""Distinct pictures; larger sets repeat their bytes under other keys, which costs a loader just as much."""

_FONTS = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
    cv2.FONT_HERSHEY_SCRIPT_COMPLEX,
)
_LETTERS = np.array(list(string.ascii_letters + string.digits))
_QUALITY = 90


def render_crop(seed: int, index: int) -> tuple[bytes, str]:
    """Render one word crop, a pure function of its arguments.

    Returns:
        The bytes of a colour JPEG, and the word in it.
    """
    rng = np.random.default_rng((seed, index))
    word = "".join(rng.choice(_LETTERS, int(rng.integers(2, 13))))
    height = int(rng.integers(20, 65))
    image = _write_word(_paper(rng, word, height), word, rng)
    grainy = cv2.add(image, rng.integers(0, 8, image.shape, np.uint8))
    encoded = cv2.imencode(".jpg", grainy, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1]
    return encoded.tobytes(), word


def _paper(rng: np.random.Generator, word: str, height: int) -> NDArray[np.uint8]:
    """Return a background with a gradient in some direction: BGR, as wide as the word needs."""
    width = max(16, int(height * (0.42 * len(word) + 0.5) * rng.uniform(0.8, 1.2)))
    corners = rng.integers(110, 245, (2, 2, 3), np.uint8)
    return np.asarray(cv2.resize(corners, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)


def _write_word(image: NDArray[np.uint8], word: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    font = int(rng.choice(_FONTS))
    thickness = 2 if height > 36 else 1
    (text_width, text_height), _ = cv2.getTextSize(word, font, 1.0, thickness)
    scale = min(0.92 * width / text_width, 0.6 * height / text_height)
    start = (int(0.04 * width), int(0.72 * height))
    ink = rng.integers(0, 90, 3).tolist()
    return np.asarray(cv2.putText(image, word, start, font, scale, ink, thickness, cv2.LINE_AA), np.uint8)


def write_crops(folder: Path, count: int, seed: int = 1) -> Path:
    """Write `count` crops as an OCR LMDB (image-%09d, label-%09d, num-samples) and return its folder.

    Raises:
        MissingExtraError: lmdb is not installed.
        OutputError: the folder cannot be written.
    """
    from inkmill.data.sources.lmdb import LmdbWriter

    pool = [render_crop(seed, index) for index in range(min(count, POOL))]
    with LmdbWriter(folder) as writer:
        for index in range(count):
            image, word = pool[index % POOL]
            writer.add(image, word)
        writer.finish()
    return folder
