"""What DALI's graph is fed with: a table's numbers as one named input for each argument of an operator.

Which inputs there are depends on the table's layout alone, so one graph serves all batches. Nearly all are arrays with
the batch first: DALI takes such an array at once, and a list of arrays one by one, at some microseconds each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inkmill.data.augment.random_numbers import NOISE_UNIT
from inkmill.data.augment.table import AugmentParams, Floats, gray_gain

Columns = dict[str, Any]
"""Inputs of the graph by name: arrays with the batch first, or lists of one array a sample."""

_NOT_WAVED = np.zeros((1, 1), np.float32)


def columns_of(table: AugmentParams, channels: int) -> Columns:
    """Return the graph's inputs for a batch; their names depend on the table's layout alone.

    Args:
        table: B rows.
        channels: of the images: 1 or 3.
    """
    columns: Columns = {}
    if table.layout.space or table.layout.waves:
        columns |= _warp_columns(table)
    if (sigma := table.part("blur")) is not None:
        columns["blurred"] = sigma[:, 0] > 0
        columns["kernel"] = _gaussians(sigma[:, 0])
    if (colour := table.colour) is not None:
        columns["coloured"] = ~np.isclose(colour, np.eye(3, 4)).all(axis=(1, 2))
        matrix = colour if channels == 3 else gray_gain(colour)[:, None, :]
        columns["mixing"] = np.ascontiguousarray(matrix[:, :, :-1])
        columns["offset"] = np.ascontiguousarray(matrix[:, :, -1])
    if (noise := table.part("noise")) is not None:
        columns["noisy"] = noise[:, 0] > 0
        columns["strength"] = noise[:, 0] / np.float32(NOISE_UNIT)
        columns["place"] = noise[:, 1:].astype(np.int32)
        columns["shape"] = np.tile(np.array([table.height, table.width, channels], np.int32), (len(table), 1))
        columns["numbers"] = columns["shape"].prod(axis=1, dtype=np.int32)[:, None]
    if (quality := table.part("jpeg")) is not None:
        columns["compressed"] = quality[:, 0] > 0
        columns["quality"] = quality[:, 0].astype(np.int32)
    if (cutouts := table.cutouts) is not None:
        columns |= _cutout_columns(cutouts)
    return columns


def _warp_columns(table: AugmentParams) -> Columns:
    space = table.space if table.space is not None else np.tile(np.eye(3, dtype=np.float32), (len(table), 1, 1))
    columns = {"moved": (space != np.eye(3, dtype=np.float32)).any(axis=(1, 2)), "space": np.ascontiguousarray(space)}
    if (waves := table.waves) is not None:
        waved = (waves[:, :, :2] != 0).any(axis=(1, 2))
        rows = np.flatnonzero(waved)
        places = source_places(space[rows], waves[rows], table.height, table.width)
        columns["waved"] = waved
        for name, of_rows in zip(("from_x", "from_y"), places, strict=True):
            found = iter(of_rows)
            columns[name] = [next(found) if needed else _NOT_WAVED for needed in waved]
    return columns


def source_places(space: Floats, waves: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """Return where each output pixel of waved images comes from, moved onto the border where it lies outside.

    Args:
        space: float32 (N, 3, 3).
        waves: float32 (N, K, 5); see `table`.
        height, width: in pixels.

    Returns:
        x and y, float32 (N, H, W).
    """
    across, down = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)
    a = waves[:, :, 2, None] * across + waves[:, :, 4, None]
    b = waves[:, :, 3, None] * down
    # sin(a + b) = sin a cos b + cos a sin b: the sum over waves becomes a product of thin matrices
    along = np.concatenate([np.sin(a), np.cos(a)], axis=1)  # (N, 2K, W)
    x, y = (
        np.concatenate([way * np.cos(b), way * np.sin(b)], axis=1).transpose(0, 2, 1) @ along
        for way in (waves[:, :, 0, None], waves[:, :, 1, None])
    )
    x += across
    y += down[:, None]
    m = space[:, :, :, None, None]
    deep = m[:, 2, 0] * x + m[:, 2, 1] * y + m[:, 2, 2]
    source_x = (m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]) / deep
    source_y = (m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]) / deep
    return np.clip(source_x, 0, width - 1, out=source_x), np.clip(source_y, 0, height - 1, out=source_y)


def _gaussians(sigma: Floats) -> Floats:
    """Return one kernel a row, float32 (B, K, K), K what the strongest blur needs; a sigma of 0 leaves one 1."""
    radius = np.ceil(3 * sigma)
    distance = np.arange(-radius.max(initial=0), radius.max(initial=0) + 1)
    weights = np.exp(-(distance**2) / (2 * np.maximum(sigma, 1e-3)[:, None] ** 2))
    weights *= np.abs(distance) <= radius[:, None]
    weights /= weights.sum(axis=1, keepdims=True)
    kernels: Floats = (weights[:, :, None] * weights[:, None, :]).astype(np.float32)
    return kernels


def _cutout_columns(cutouts: Floats) -> Columns:
    """Return which rows are cut, and six numbers a rectangle: x, y, width, height, shade, whether another follows.

    A row's rectangles come first, in their order: so each condition of the graph lies inside the one before.
    """
    there = (cutouts[:, :, 2:4] > cutouts[:, :, :2]).all(axis=2)
    first = np.argsort(~there, axis=1, kind="stable")
    there, cutouts = np.take_along_axis(there, first, axis=1), np.take_along_axis(cutouts, first[:, :, None], axis=1)
    rectangles = np.zeros((*there.shape, 6), np.float32)
    rectangles[:, :, :2], rectangles[:, :, 2:4] = cutouts[:, :, :2], cutouts[:, :, 2:4] - cutouts[:, :, :2]
    rectangles[:, :, 4], rectangles[:, :-1, 5] = np.rint(cutouts[:, :, 4]), there[:, 1:]
    return {"cut": there[:, 0].copy(), "rectangles": rectangles.reshape(len(cutouts), -1)}
