"""Small pictures with text whose places are known, for tests of detection."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from inkmill.data.types import Polygons

LETTERS = list("ABCDEFGHKLMNPRSTUVXYZ0123456789")


def page(rng: np.random.Generator, side: int) -> tuple[np.ndarray, Polygons]:
    """Return a grainy light picture, uint8 (side, side, 3), with dark words that do not touch."""
    image = np.clip(rng.uniform(120, 255) + rng.normal(0, 6, (side, side, 3)), 0, 255).astype(np.uint8)
    taken, regions = np.zeros((side, side), np.bool_), []
    for _ in range(5):
        text, size = "".join(rng.choice(LETTERS, rng.integers(2, 6))), rng.uniform(0.5, 1)
        (wide, high), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 2)
        if wide >= side - 8:
            continue
        x, y = int(rng.integers(2, side - wide - 3)), int(rng.integers(high + 3, side - 4))
        around = taken[y - high - 4 : y + 5, x - 2 : x + wide + 3]
        if around.any():
            continue
        around[:] = True
        cv2.putText(image, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size, (int(rng.integers(0, 60)),) * 3, 2)
        left, top, right, bottom = x - 1, y - high - 1, x + wide, y + 2
        regions.append(np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32))
    return image, Polygons(tuple(regions), (False,) * len(regions))


def write_set(folder: Path, count: int, side: int) -> Path:
    """Write a set in the ICDAR layout and return its folder."""
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    (folder / "gt").mkdir()
    for number in range(count):
        image, regions = page(rng, side)
        cv2.imwrite(str(folder / "images" / f"p{number}.png"), image)
        lines = [",".join(str(int(value)) for value in points.ravel()) + ",text\n" for points in regions.points]
        (folder / "gt" / f"gt_p{number}.txt").write_text("".join(lines))
    return folder
