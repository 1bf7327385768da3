"""A sheet of synthetic samples to look at: what a reader would be shown, changes included, at their own widths."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.cpu import apply_cv
from inkmill.data.pipeline.resize import Resize
from inkmill.synth.engine import SynthEngine

Image = NDArray[np.uint8]

_ROW = 48  # height of a sample on the sheet, in pixels
_GAP = 4


def draw_samples(
    engine: SynthEngine, resize: Resize, seed: int, count: int
) -> tuple[list[Image], list[str], NDArray[np.float32]]:
    """Draw samples as a model with this input meets them.

    Args:
        engine: what to draw from.
        resize: how images meet the model's input.
        seed: another one gives other samples.
        count: how many.

    Returns:
        The images, uint8 (h, w, 3), each of its input size; their texts; float32 (count,), their width / height.
    """
    index = np.arange(count)
    params = engine.rows(seed, index)
    aspects = params["aspect"]
    sizes = [resize.bucket_width(max(1, round(1000 * aspect)), 1000) for aspect in aspects.tolist()]
    images: list[Image] = [np.empty(0, np.uint8)] * count
    for width in sorted(set(sizes)):
        rows = np.flatnonzero(np.array(sizes) == width)
        height = resize.rows(width)
        drawn = engine.images(params.rows(rows), height, width)
        if engine.changes is not None:
            drawn = apply_cv(drawn, engine.changes.sample(seed, 0, index[rows], height, width))
        for row, image in zip(rows.tolist(), drawn, strict=True):
            images[row] = image
    return images, engine.strings(params.codes), aspects


def sheet(images: list[Image], aspects: NDArray[np.float32], width: int = 1200) -> Image:
    """Lay images out in rows of one height, each as wide as its text is by nature.

    Args:
        images: uint8 (h, w, 3).
        aspects: float32 (N,), natural width / height of each.
        width: of the sheet in pixels.

    Returns:
        uint8 (H, width, 3).
    """
    rows: list[list[Image]] = [[]]
    used = _GAP
    for image, aspect in zip(images, aspects.tolist(), strict=True):
        columns = int(np.clip(round(_ROW * aspect), _ROW // 3, width - 2 * _GAP))
        if used + columns + _GAP > width and rows[-1]:
            rows.append([])
            used = _GAP
        rows[-1].append(np.asarray(cv2.resize(image, (columns, _ROW), interpolation=cv2.INTER_LINEAR), np.uint8))
        used += columns + _GAP
    out = np.full((len(rows) * (_ROW + _GAP) + _GAP, width, 3), 255, np.uint8)
    for number, row in enumerate(rows):
        top, left = _GAP + number * (_ROW + _GAP), _GAP
        for image in row:
            out[top : top + _ROW, left : left + image.shape[1]] = image
            left += image.shape[1] + _GAP
    return out
