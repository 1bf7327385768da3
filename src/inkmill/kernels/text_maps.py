"""The maps of text detection on a GPU: what `inkmill.tasks.detection.targets` does in NumPy, from the same arrays.

One program measures a region; then one program makes a tile of the maps of a picture. A tile looks at each region's box
and works out distances only for those that can reach it, so the cost is that of the text, not of regions times pixels.
Values are maxima over regions: they do not depend on any order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_GRID = 32  # the reference's numbers, which kernels cannot import
_ROUNDS = 3
_MEASURES = 6
_MIN_AREA = 1.0
_TILE = 32  # rows and columns of a program


def text_maps(
    points: Tensor,
    starts: Tensor,
    pictures: Tensor,
    ignore: Tensor,
    size: tuple[int, int],
    shrink: bool,
    share: float,
    min_height: float,
    min_visible: float,
    stride: int,
) -> Tensor:
    """Return the maps of a batch, not waited for; see `inkmill.tasks.detection.targets.text_maps`.

    Args:
        points: float32 (P, 2), on a GPU as all others.
        starts: int32 (R + 1).
        pictures: int32 (B + 1).
        ignore: uint8 (R).
        size: height and width of the input.
        shrink: DB's rule for D, else the share of the inradius.
        share, min_height, min_visible, stride: see MapOptions.

    Returns:
        float32 (B, 3, height / stride, width / stride).
    """
    regions, batch = len(ignore), len(pictures) - 1
    height, width = size[0] // stride, size[1] // stride
    measures = torch.empty((max(regions, 1), _MEASURES), dtype=torch.float32, device=points.device)
    maps = torch.empty((batch, 3, height, width), dtype=torch.float32, device=points.device)
    if regions:
        _measure[(regions,)](
            points,
            starts,
            ignore,
            measures,
            size[0],
            size[1],
            share,
            min_height,
            min_visible,
            stride,
            SHRINK=shrink,
            GRID=_GRID,
            ROUNDS=_ROUNDS,
            MEASURES=_MEASURES,
            MIN_AREA=_MIN_AREA,
        )
    if batch:
        across = triton.cdiv(width, _TILE)
        _draw[(across * triton.cdiv(height, _TILE), batch)](
            points,
            starts,
            pictures,
            measures,
            maps,
            height,
            width,
            across,
            stride,
            TILE=_TILE,
            MEASURES=_MEASURES,
        )
    return maps


def move_points(points: Tensor, picture: Tensor, matrices: Tensor) -> Tensor:
    """Do what `inkmill.tasks.detection.targets.move_points` does, on a GPU."""
    chosen = matrices.float().index_select(0, picture)
    moved = torch.baddbmm(chosen[:, :, 2:], chosen[:, :, :2], points[:, :, None])[:, :, 0]
    return (moved[:, :2] / moved[:, 2:].clamp_min(1e-6)).contiguous()


@triton.jit
def _nearer(x, y, ax, ay, bx, by, squared, inside):  # type: ignore[no-untyped-def]
    """Take one edge into account: the squared distance to it, and whether a ray to the right crosses it."""
    dx = bx - ax
    dy = by - ay
    along = ((x - ax) * dx + (y - ay) * dy) / tl.maximum(dx * dx + dy * dy, 1e-12)
    along = tl.minimum(tl.maximum(along, 0.0), 1.0)
    off_x = x - ax - along * dx
    off_y = y - ay - along * dy
    squared = tl.minimum(squared, off_x * off_x + off_y * off_y)
    rise = tl.where(dy == 0.0, 1.0, dy)  # a level edge is never crossed
    crosses = ((ay > y) != (by > y)) & (x < ax + (y - ay) / rise * dx)
    return squared, inside ^ crosses.to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _measure(  # type: ignore[no-untyped-def]
    points,
    starts,
    ignore,
    measures,
    height,
    width,
    share,
    min_height,
    min_visible,
    stride,
    SHRINK: tl.constexpr,
    GRID: tl.constexpr,
    ROUNDS: tl.constexpr,
    MEASURES: tl.constexpr,
    MIN_AREA: tl.constexpr,
):
    """Measure one region."""
    region = tl.program_id(0)
    first = tl.load(starts + region)
    end = tl.load(starts + region + 1)
    # 1. Its box, area and perimeter; areas from its first point, which keeps the products small.
    from_x = tl.load(points + 2 * first)
    from_y = tl.load(points + 2 * first + 1)
    left, right, top, bottom = from_x, from_x, from_y, from_y
    area = 0.0
    perimeter = 0.0
    for edge in range(first, end):
        other = tl.where(edge + 1 < end, edge + 1, first)
        ax = tl.load(points + 2 * edge)
        ay = tl.load(points + 2 * edge + 1)
        bx = tl.load(points + 2 * other)
        by = tl.load(points + 2 * other + 1)
        left, right = tl.minimum(left, ax), tl.maximum(right, ax)
        top, bottom = tl.minimum(top, ay), tl.maximum(bottom, ay)
        area += (ax - from_x) * (by - from_y) - (ay - from_y) * (bx - from_x)
        perimeter += tl.sqrt((bx - ax) * (bx - ax) + (by - ay) * (by - ay))
    area = tl.abs(area) * 0.5
    # 2. The radius of the largest circle inside, closer from round to round; what share of it the picture shows.
    places = tl.arange(0, GRID * GRID)
    column = ((places % GRID).to(tl.float32) + 0.5) / GRID
    row = ((places // GRID).to(tl.float32) + 0.5) / GRID
    corner_x, corner_y, wide, high = left, top, right - left, bottom - top
    deepest = 0.0
    visible = 1.0
    for number in tl.static_range(ROUNDS):
        x = corner_x + wide * column
        y = corner_y + high * row
        squared = tl.full([GRID * GRID], float("inf"), tl.float32)
        inside = tl.zeros([GRID * GRID], tl.int32)
        for edge in range(first, end):
            other = tl.where(edge + 1 < end, edge + 1, first)
            ax = tl.load(points + 2 * edge)
            ay = tl.load(points + 2 * edge + 1)
            bx = tl.load(points + 2 * other)
            by = tl.load(points + 2 * other + 1)
            squared, inside = _nearer(x, y, ax, ay, bx, by, squared, inside)
        depth = tl.where(inside == 1, tl.sqrt(squared), -tl.sqrt(squared))
        if number == 0:
            shown = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
            within = tl.where(depth > 0, 1.0, 0.0)
            visible = tl.sum(tl.where(shown, within, 0.0), axis=0) / tl.maximum(tl.sum(within, axis=0), 1.0)
        best = tl.max(depth, axis=0)
        deepest = tl.maximum(deepest, best)
        # Of several deepest places the first, as NumPy's argmax.
        which = tl.min(tl.where(depth == best, places, GRID * GRID - 1), axis=0)
        wide_next = wide * (3.0 / GRID)
        high_next = high * (3.0 / GRID)
        corner_x = corner_x + wide * (((which % GRID).to(tl.float32) + 0.5) / GRID) - wide_next / 2
        corner_y = corner_y + high * (((which // GRID).to(tl.float32) + 0.5) / GRID) - high_next / 2
        wide, high = wide_next, high_next
    # 3. D, and what the region is to the maps: 0 nothing, 1 text, 2 ignored.
    if SHRINK:  # noqa: SIM108 - decided when it is compiled
        distance = area * (1 - share * share) / tl.maximum(perimeter, 1e-6)
    else:
        distance = deepest * share
    is_region = (area >= MIN_AREA) & (area < float("inf"))
    is_there = (right >= -0.5) & (bottom >= -0.5) & (left <= width - 0.5) & (top <= height - 0.5)
    left_out = (tl.load(ignore + region) != 0) | (2 * deepest < min_height) | (visible < min_visible)
    kind = tl.where(is_region & is_there, tl.where(left_out, 2.0, 1.0), 0.0)
    reach = tl.maximum(distance, stride)
    measures += region * MEASURES
    tl.store(measures, left - reach)
    tl.store(measures + 1, top - reach)
    tl.store(measures + 2, right + reach)
    tl.store(measures + 3, bottom + reach)
    tl.store(measures + 4, distance)
    tl.store(measures + 5, kind)


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    points,
    starts,
    pictures,
    measures,
    maps,
    height,
    width,
    across,
    stride,
    TILE: tl.constexpr,
    MEASURES: tl.constexpr,
):
    """Make one tile of the three maps of a picture."""
    tile = tl.program_id(0)
    picture = tl.program_id(1).to(tl.int64)
    # 1. Where its pixels have their centres in the input, and its box there.
    row = tile // across * TILE + (tl.arange(0, TILE * TILE) // TILE)
    column = tile % across * TILE + (tl.arange(0, TILE * TILE) % TILE)
    x = (column.to(tl.float32) + 0.5) * stride - 0.5
    y = (row.to(tl.float32) + 0.5) * stride - 0.5
    tile_left = (tile % across) * TILE * stride
    tile_top = (tile // across) * TILE * stride
    tile_right = tile_left + TILE * stride
    tile_bottom = tile_top + TILE * stride
    text = tl.zeros([TILE * TILE], tl.float32)
    counted = tl.full([TILE * TILE], 1.0, tl.float32)
    threshold = tl.zeros([TILE * TILE], tl.float32)
    for region in range(tl.load(pictures + picture), tl.load(pictures + picture + 1)):
        # 2. Can the region reach this tile?
        numbers = measures + region * MEASURES
        kind = tl.load(numbers + 5)
        left = tl.load(numbers)
        top = tl.load(numbers + 1)
        right = tl.load(numbers + 2)
        bottom = tl.load(numbers + 3)
        reaches = (left <= tile_right) & (right >= tile_left) & (top <= tile_bottom) & (bottom >= tile_top)
        if (kind > 0) & reaches:
            # 3. How deep each pixel lies in it.
            first = tl.load(starts + region)
            end = tl.load(starts + region + 1)
            squared = tl.full([TILE * TILE], float("inf"), tl.float32)
            inside = tl.zeros([TILE * TILE], tl.int32)
            for edge in range(first, end):
                other = tl.where(edge + 1 < end, edge + 1, first)
                ax = tl.load(points + 2 * edge)
                ay = tl.load(points + 2 * edge + 1)
                bx = tl.load(points + 2 * other)
                by = tl.load(points + 2 * other + 1)
                squared, inside = _nearer(x, y, ax, ay, bx, by, squared, inside)
            depth = tl.where(inside == 1, tl.sqrt(squared), -tl.sqrt(squared))
            # 4. What that makes of it.
            distance = tl.load(numbers + 4)
            is_text = tl.where(kind == 1.0, 1.0, 0.0)
            kernel = tl.minimum(tl.maximum(0.5 + (depth - distance) / stride, 0.0), 1.0)
            text = tl.maximum(text, is_text * kernel)
            counted = tl.where(depth > 0, counted * is_text, counted)
            near = 1 - tl.abs(depth) / tl.maximum(distance, 1e-6)
            band = 0.3 + 0.4 * tl.minimum(tl.maximum(near, 0.0), 1.0)
            threshold = tl.maximum(threshold, tl.where(depth > -distance, is_text * band, 0.0))
    # 5. The maps lie one behind the other.
    in_map = (row < height) & (column < width)
    goal = maps + picture * 3 * height * width + row * width + column
    tl.store(goal, text, mask=in_map)
    tl.store(goal + height * width, counted, mask=in_map)
    tl.store(goal + 2 * height * width, threshold, mask=in_map)
