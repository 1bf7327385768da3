"""Small real images for tests of data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
import pytest

MakeImages = Callable[[Path, Iterable[str]], Path]


def encoded(number: int, suffix: str = ".png") -> bytes:
    """An image of 24 x 12 pixels that differs from number to number."""
    image = np.random.default_rng(number).integers(0, 255, (12, 24, 3), np.uint8)
    ok, data = cv2.imencode(suffix, image)
    assert ok
    return data.tobytes()


@pytest.fixture
def make_images() -> MakeImages:
    """A function that writes one small image for each name under a folder and returns the folder."""

    def make(folder: Path, names: Iterable[str]) -> Path:
        for number, name in enumerate(names):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(number, path.suffix))
        return folder

    return make
