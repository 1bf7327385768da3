"""Targets beside their pictures: polygons go where the pixels go, class names become vectors, texts stay as they are.

A loader changes a picture twice, by fitting it and by augmenting it, and its polygons by the same numbers. What is
clipped or lost on the way is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inkmill.data.types import Labels, Polygons, Target, Texts
from inkmill.errors import ConfigError, DataError
from inkmill.registry import suggest

if TYPE_CHECKING:
    from inkmill.data.augment.params import AugmentParams
    from inkmill.data.pipeline.resize import Resize

Regions = Counter[str]
"""How many polygons were "clipped" at a border, or dropped: "degenerate", "outside", "mostly outside"."""


def has_polygons(targets: Sequence[Target | None]) -> bool:
    """Return whether any of a batch's targets has to follow its picture."""
    return not isinstance(targets, Texts) and Polygons in set(map(type, targets))


def refuse_polygons(targets: Sequence[Target | None]) -> None:
    """Raise ConfigError where a target is polygons: foreign code does not tell where it moves a point."""
    if has_polygons(targets):
        raise ConfigError(
            "polygons cannot follow an Albumentations pipeline: describe the changes by augmentation.ops or a preset"
        )


def resize_target(target: Target, resize: Resize, size: tuple[int, int], regions: Regions) -> Target:
    """Return a target as it is after its picture was resized.

    Args:
        target: in pixels of the encoded image; only polygons change.
        resize: how the picture was resized.
        size: (width, height) of the decoded picture.
        regions: what happens to polygons is added here.
    """
    if not isinstance(target, Polygons):
        return target
    columns, rows = resize.valid_width(*size), resize.rows(resize.bucket_width(*size))
    across, down = size[0] / columns, size[1] / rows
    back = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])  # centres of pixels
    return _moved(target, back, (columns, rows), None, regions)


def move_targets(targets: Sequence[Target], params: AugmentParams, regions: Regions) -> Sequence[Target]:
    """Return a batch's targets as they are after its pictures were augmented.

    Args:
        targets: B of them, in pixels of the resized pictures; only polygons change.
        params: of the batch.
        regions: what happens to polygons is added here.
    """
    space, waves = params.space, params.waves
    if (space is None and waves is None) or not has_polygons(targets):
        return targets
    still = np.eye(3, dtype=np.float32)
    moved: list[Target] = []
    for row, target in enumerate(targets):
        if isinstance(target, Polygons):
            matrix, bends = still if space is None else space[row], None if waves is None else waves[row]
            target = _moved(target, matrix, (params.width, params.height), bends, regions)
        moved.append(target)
    return moved


def _moved(
    polygons: Polygons,
    matrix: NDArray[np.floating],
    size: tuple[int, int],
    waves: NDArray[np.float32] | None,
    regions: Regions,
) -> Polygons:
    from inkmill.data.augment.polygons import move_polygons  # here, for workers without polygons start faster so

    moved = move_polygons(polygons, matrix, *size, waves)
    if moved.clipped:
        regions["clipped"] += moved.clipped
    regions.update(moved.reasons)
    return moved.polygons


def multi_hot(targets: Sequence[Target], classes: Sequence[str]) -> NDArray[np.float32]:
    """Return what a batch's class names are to a classifier: float32 (B, K), 1 present, 0 absent, -1 unknown.

    Args:
        targets: B `Labels`; an image without a class is a row of zeros.
        classes: the K class names, in the order of the model's outputs.

    Raises:
        DataError: a name that is not among the classes, a class that comes twice, or a target that is no `Labels`.
    """
    column = {name: number for number, name in enumerate(classes)}
    if len(column) != len(classes):
        twice = next(name for name, count in Counter(classes).items() if count > 1)
        raise DataError(f"the class {twice!r} comes twice in the class list: name each class once")
    labels = [target for target in targets if isinstance(target, Labels)]
    if len(labels) != len(targets):
        kind = next(type(target).__name__ for target in targets if not isinstance(target, Labels))
        raise DataError(f"expected class names for every image, and one has {kind.lower()}: read it as multilabel")
    vectors = np.zeros((len(labels), len(column)), np.float32)
    for value, names in ((-1, [one.unknown for one in labels]), (1, [one.names for one in labels])):
        rows = np.repeat(np.arange(len(names)), [len(some) for some in names])
        try:
            columns = np.fromiter(map(column.__getitem__, chain.from_iterable(names)), np.int64, len(rows))
        except KeyError as error:
            (name,) = error.args
            hint = suggest(name, column)
            raise DataError(
                f"the class {name!r}{hint} is not among the {len(column)} classes: add it, or fix the label"
            ) from None
        vectors[rows, columns] = value
    return vectors
