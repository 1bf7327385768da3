"""How well regions come back from the very maps that a detector is asked for: the most that any training can reach.

A map is made of the true regions of a picture, as the loss has it, and decoded as a network's would be. What is lost on
the way (lines that melt into one, boxes that come back too tight, text too small for the map) no network gives back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inkmill.data.pipeline.pages import PageResize
from inkmill.data.types import Polygons
from inkmill.tasks.detection.decode import DecodeOptions, as_bytes, find_regions
from inkmill.tasks.detection.metrics import DetectionScores, score
from inkmill.tasks.detection.overlaps import Points
from inkmill.tasks.detection.targets import MapOptions, text_maps


def ceiling(
    truths: Sequence[Polygons],
    sizes: Sequence[tuple[int, int]],
    resize: PageResize,
    maps: MapOptions,
    decoding: DecodeOptions,
) -> DetectionScores:
    """Return the scores of perfect maps.

    Args:
        truths: the regions of each picture, those that learning ignores marked so.
        sizes: width and height of each picture.
        resize: how pictures are read.
        maps: how maps are made.
        decoding: how regions are found on them.

    Raises:
        DataError: no pictures.
    """
    decoding = replace(decoding, box_threshold=0.0)  # a perfect map has no doubts
    found = [_from_perfect_map(*row, resize, maps, decoding) for row in zip(truths, sizes, strict=True)]
    return score(truths, found)


def _from_perfect_map(
    truth: Polygons, size: tuple[int, int], resize: PageResize, maps: MapOptions, decoding: DecodeOptions
) -> list[Points]:
    matrix = resize.matrix(*size)[:2]
    moved = [points @ matrix[:, :2].T + matrix[:, 2] for points in truth.points]
    points = np.concatenate([np.zeros((0, 2)), *moved]).astype(np.float32)
    starts = np.cumsum([0, *map(len, moved)], dtype=np.int32)
    pictures = np.array([0, len(moved)], np.int32)
    width, height = resize.padded_size(*size)
    columns, rows = resize.page_size(*size)
    perfect = text_maps(points, starts, pictures, np.array(truth.ignore, np.uint8), (height, width), maps)[:, 0]
    back = find_regions(as_bytes(perfect)[0], decoding, (size[0] / columns, size[1] / rows))
    return [region.points for region in back.found]
