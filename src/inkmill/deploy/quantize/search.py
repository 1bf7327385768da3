"""Which layers stay in float: the most sensitive ones, and no more of them than the bound needs.

All layers are tried in int8 first. Where that costs too much, each layer is quantised alone and ranked by how far the
probabilities move; then the first 1, 2, 4, ... of the ranking stay in float until the bound holds. Doubling, not adding
one: a try reads all images, and a few layers too many in float cost little speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.deploy.export.parity import distance
from inkmill.deploy.quantize.layers import Layer, Ranges, quantised
from inkmill.errors import InkmillError
from inkmill.runtime.reader import BaseReader

RANKED_ON = 64
"""Images that rank the layers: some 50 layers read them, one after the other."""

OpenReader = Callable[[Any], BaseReader]
"""From a ModelProto to a reader."""


@dataclass(frozen=True)
class Chosen:
    """What the search found.

    Attributes:
        model: the quantised ModelProto.
        reader: what reads with it.
        in_float: layers that stay in float, the most sensitive first.
        drop: share of the images that it costs.
        tried: the drop with so many layers in float, in the order of trying.
    """

    model: Any
    reader: BaseReader
    in_float: list[Layer]
    drop: float
    tried: list[dict[str, float]] = field(default_factory=list)


def search(
    model: Any,
    layers: Sequence[Layer],
    ranges: Ranges,
    *,
    open_reader: OpenReader,
    drop_of: Callable[[BaseReader], float],
    images: NDArray[np.uint8],
    max_drop: float,
) -> Chosen:
    """Return the quantised graph with the fewest layers in float, in steps of two, that costs no more than the bound.

    Args:
        model: the float ModelProto.
        layers: those that may be quantised.
        ranges: of their tensors.
        open_reader: makes a reader of a graph.
        drop_of: says what a reader costs, in 0..1.
        images: resized uint8 (N, H, W, C), on which the layers are ranked.
        max_drop: the bound.

    Raises:
        InkmillError: the bound does not hold with a single layer in int8.
    """
    in_float: list[Layer] = []
    ranking: list[Layer] = []
    tried: list[dict[str, float]] = []
    while len(in_float) < len(layers):
        # 1. Everything in int8 but the layers that are left in float so far: none at first.
        made = quantised(model, [layer for layer in layers if layer not in in_float], ranges)
        reader = open_reader(made)
        drop = drop_of(reader)
        tried.append({"in_float": len(in_float), "drop": drop})
        if drop <= max_drop:
            return Chosen(made, reader, in_float, drop, tried)
        # 2. It costs too much: rank the layers once, then leave twice as many of the most sensitive in float.
        ranking = ranking or rank(model, layers, ranges, open_reader, images)
        count = max(1, 2 * len(in_float))
        if len(in_float) < len(layers) - 1:
            count = min(count, len(layers) - 1)  # one layer in int8 is tried before giving up
        in_float = ranking[:count]
    raise InkmillError(
        f"int8 costs {min(one['drop'] for one in tried):.1%} of the images even with {tried[-1]['in_float']:.0f} of "
        f"{len(layers)} layers in float, more than quantize.max_drop={max_drop:g}; nothing was written"
    )


def rank(
    model: Any, layers: Sequence[Layer], ranges: Ranges, open_reader: OpenReader, images: NDArray[np.uint8]
) -> list[Layer]:
    """Return the layers, first the one whose int8 alone moves the probabilities furthest."""
    before = open_reader(model).outputs(images)
    alone = (open_reader(quantised(model, [layer], ranges)) for layer in layers)
    moved = [distance(before, reader.outputs(images)) for reader in alone]
    return [layers[place] for place in np.argsort(-np.asarray(moved), kind="stable")]
