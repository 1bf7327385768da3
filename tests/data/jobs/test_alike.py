"""Pictures that look alike: saved again, smaller or brighter, and not merely similar ones."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.data.jobs.alike import MAX_BITS, alike, look_of
from inkmill.data.pipeline.decode import decode


def looks(images: list[np.ndarray]) -> np.ndarray:
    return np.array([look_of(image) for image in images], np.uint64).reshape(-1, 2)


@pytest.fixture(scope="module")
def photographs(writable_captchas: Path) -> list[np.ndarray]:
    files = sorted(writable_captchas.rglob("*.png"))[:400]
    return [decode(file.read_bytes(), 3) for file in files]


def saved_again(image: np.ndarray, quality: int, scale: float) -> np.ndarray:
    small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return cv2.imdecode(cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)


def test_copies_are_found_and_different_pictures_are_not(photographs: list[np.ndarray]) -> None:
    ours = looks([saved_again(image, 60, 0.8) for image in photographs])
    pairs = alike(ours, looks(photographs))
    right = pairs[:, 0] == pairs[:, 1]
    assert right.sum() > 0.97 * len(photographs)
    assert (~right).sum() <= 0.01 * len(photographs)


def test_the_join_finds_what_comparing_everything_finds() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.integers(1, 2**63, (300, 2)).astype(np.uint64)
    ours = theirs[rng.integers(0, 300, 200)].copy()
    for row in ours:
        for bit in rng.choice(128, rng.integers(0, 13), replace=False):
            row[bit // 64] ^= np.uint64(1 << int(bit % 64))
    distance = np.bitwise_count(ours[:, None] ^ theirs[None]).sum(axis=2)
    expected = [(row, int(np.argmax(near))) for row, near in enumerate(distance <= MAX_BITS) if near.any()]
    assert alike(ours, theirs).tolist() == [list(pair) for pair in expected]


def test_flat_pictures_are_alike_to_none() -> None:
    flat = looks([np.full((40, 90, 3), shade, np.uint8) for shade in (0, 90, 255)])
    assert not flat.any()
    assert alike(flat, flat).shape == (0, 2)
