"""Which part of a larger picture a model sees in training: drawn as numbers, for a batch at a time.

The picture is kept at the size at which the model reads, which is larger than what it sees in training: all that is
the same in every epoch (decode, resize) is done once, and what differs, the part, is a matter of four numbers. They
become a part of the matrix from output to input (see `params`), so that one warp does crop, scale, rotation and
perspective, and the regions follow by the same matrix.

The numbers are drawn on the CPU, for they depend on where the texts lie; from the same hash as all others, so that a
picture has the same part in any worker, loader or rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment import ops
from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.random_numbers import sample_states, uniforms
from inkmill.data.augment.sampling import log_uniform, part_of_area
from inkmill.data.types import Polygons, Target

Floats = NDArray[np.float64]

_STEPS = np.array([0.7548776662466927, 0.5698402909980532])
"""Multiples of these, without their whole parts, fill a square evenly (Roberts 2018, the R2 sequence)."""


class TextBoxes(NamedTuple):
    """Where the texts of a batch of pictures lie.

    Attributes:
        boxes: float32 (R, 4), left, top, right and bottom of each text to find, in pixels.
        counts: int64 (B,), how many of them are of each picture.
    """

    boxes: NDArray[np.float32]
    counts: NDArray[np.int64]


def boxes_of(target: Target) -> NDArray[np.float32]:
    """Return the boxes of a picture's texts to find: float32 (R, 4), left, top, right and bottom."""
    if not isinstance(target, Polygons):
        return np.empty((0, 4), np.float32)
    regions = [points for points, ignore in zip(target.points, target.ignore, strict=True) if not ignore]
    if not regions:
        return np.empty((0, 4), np.float32)
    corners = np.concatenate(regions)
    starts = np.cumsum([0, *map(len, regions[:-1])])
    low, high = np.minimum.reduceat(corners, starts), np.maximum.reduceat(corners, starts)
    return np.concatenate([low, high], axis=1)


def text_boxes(boxes: Sequence[NDArray[np.float32]], scales: NDArray[np.floating]) -> TextBoxes:
    """Return the boxes of a batch of pictures after they were resized.

    Args:
        boxes: of each picture, `boxes_of`.
        scales: (B, 2), by which width and height changed.
    """
    counts = np.array([len(some) for some in boxes], np.int64)
    together = np.concatenate([np.empty((0, 4), np.float32), *boxes])
    return TextBoxes(together * np.tile(np.repeat(scales, counts, axis=0), 2).astype(np.float32), counts)


def draw_windows(
    augmentation: Augmentation,
    seed: int,
    epoch: int,
    index: NDArray[np.int64],
    pages: NDArray[np.int64],
    size: tuple[int, int],
    texts: TextBoxes,
) -> Floats:
    """Draw the part of each picture that a model is shown.

    Args:
        augmentation: its first crop decides; where it has none, and where that does not happen, pictures are shown
            whole, no larger than they are kept.
        seed, epoch: of the run.
        index: int64 (B,), positions of the samples in the source.
        pages: int64 (B, 2), rows and columns of the pictures that are kept.
        size: height and width of what the model sees.
        texts: of the pictures that are kept.

    Returns:
        float64 (4, B): x and y of the part's centre in the picture, pixel centres at whole numbers, and how many of the
        picture's pixels a pixel of the output takes, across and down.
    """
    sides, out = pages[:, ::-1].astype(np.float64), np.array(size[::-1], np.float64)
    # 1. The whole picture, in the middle.
    window = out * np.maximum(1.0, (sides / out).max(axis=1))[:, None]
    corner = (sides - window) / 2
    # 2. A part of it, for those that get one.
    if (crop := augmentation.crop) is not None:
        op, offsets, probabilities = crop
        u = uniforms(sample_states(seed, epoch, index), offsets)
        coins = len(probabilities)
        active = (u[:coins] < probabilities[:, None]).all(axis=0)[:, None]
        drawn = _near_text if isinstance(op, ops.Crop) else _of_area
        part, place = drawn(op, u[coins:], sides, out, texts)  # type: ignore[arg-type]
        window, corner = np.where(active, part, window), np.where(active, place, corner)
    # 3. From edges to centres of pixels.
    return cast(Floats, np.concatenate([(corner + window / 2 - 0.5).T, (window / out).T]))


def _of_area(
    op: ops.RandomResizedCrop, u: Floats, sides: Floats, out: Floats, texts: TextBoxes
) -> tuple[Floats, Floats]:
    part = np.stack(part_of_area(op, np, u, sides[:, 0], sides[:, 1]), axis=1)
    return part, (sides - part) * u[2:4].T


def _near_text(op: ops.Crop, u: Floats, sides: Floats, out: Floats, texts: TextBoxes) -> tuple[Floats, Floats]:
    """Return sides and upper left corner of each part, both (B, 2)."""
    window = out / log_uniform(op.scale, np, u[0])[:, None]
    # 1. Where its corner may be: within the picture, or around it where the part is larger.
    low, high = np.minimum(0, sides - window), np.maximum(0, sides - window)
    # 2. So that it holds the centre of one of the texts.
    boxes, counts = texts
    ends = np.cumsum(counts)
    some = np.flatnonzero((u[1] < op.about_text) & (counts > 0))
    box = boxes[ends[some] - counts[some] + (u[2][some] * counts[some]).astype(np.int64)].astype(np.float64)
    centre = np.clip((box[:, :2] + box[:, 2:]) / 2, 0, sides[some])
    low[some] = np.maximum(low[some], centre - window[some])
    high[some] = np.minimum(high[some], centre)
    # 3. Of several places, evenly spread, the first that cuts the fewest texts.
    spread = (u[3:5].T[:, None] + np.arange(op.tries)[:, None] * _STEPS) % 1
    corners = low[:, None] + (high - low)[:, None] * spread
    best = _fewest_cuts(corners, window, texts) if op.tries > 1 and len(boxes) else np.zeros(len(sides), np.int64)
    return window, corners[np.arange(len(sides)), best]


def _fewest_cuts(corners: Floats, window: Floats, texts: TextBoxes) -> NDArray[np.int64]:
    """Return for each picture which of its places, (B, T, 2), cuts through the fewest texts."""
    boxes, counts = texts
    picture = np.repeat(np.arange(len(counts)), counts)
    near, far = boxes[:, None, :2], boxes[:, None, 2:]
    start = corners[picture].astype(np.float32)
    stop = start + window[picture, None].astype(np.float32)
    inside = ((near >= start) & (far <= stop)).all(axis=2)
    touched = ((far > start) & (near < stop)).all(axis=2)
    summed = np.concatenate([np.zeros((1, corners.shape[1]), np.int64), np.cumsum(touched & ~inside, axis=0)])
    ends = np.cumsum(counts)
    return cast("NDArray[np.int64]", (summed[ends] - summed[ends - counts]).argmin(axis=1))
