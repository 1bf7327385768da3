"""The reference composer: draws the images of a table of synthetic text with NumPy, pixel by pixel of the output.

This is the definition that the GPU kernel follows, step by step, and what a machine without a GPU uses. Nothing here is
random and nothing depends on a neighbour pixel: every number comes from the sample's row (`params.COLUMNS`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.params import LUMA
from inkmill.synth.params import (
    EM_PIXELS,
    SLICES,
    STEPS_PER_PIXEL,
    GlyphTable,
    GroundTable,
    SynthParams,
)

Array = Any
"""float32 array of NumPy, if nothing else is said."""

FAR = -1.0
"""Signed distance in em where no glyph's box reaches."""
EXTRUSION_STEPS = 4
"""Most copies of an extrusion."""


def compose(
    params: SynthParams, glyphs: GlyphTable, grounds: GroundTable, height: int, width: int
) -> NDArray[np.uint8]:
    """Draw the images of a table.

    Args:
        params: the rows.
        glyphs: of the atlas that the rows were sampled for.
        grounds: the bank that the rows were sampled for.
        height, width: of the images in pixels.

    Returns:
        uint8 (B, height, width, 3), RGB.
    """
    images = np.empty((len(params), height, width, 3), np.uint8)
    for row in range(len(params)):
        images[row] = _compose_row(params, row, glyphs, grounds, height, width)
    return images


class _Row:
    """The numbers of one row by name: a float, or an array where a column has several."""

    def __init__(self, values: Array) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Array:
        part = self._values[SLICES[name]]
        return part[0] if len(part) == 1 else part


def _compose_row(
    params: SynthParams, number: int, glyphs: GlyphTable, grounds: GroundTable, height: int, width: int
) -> NDArray[np.uint8]:
    row = _Row(params.values[number])
    used = params.glyphs[number] >= 0
    glyph_ids, places = params.glyphs[number][used], params.places[number][used]
    x = ((np.arange(width, dtype=np.float32) + 0.5) / width)[None, :]
    y = ((np.arange(height, dtype=np.float32) + 0.5) / height)[:, None]

    # 1. Output pixel -> text plane, and how much of it the pixel covers (em): the edge of a letter is that soft.
    plane_u, plane_v, footprint = _text_plane(row["matrix"], x, y, height, width)
    # 2. Text plane -> along the baseline: the wave, then the arc.
    u, v = _straightened(row, plane_u, plane_v)
    # 3. Signed distance to the nearest outline of the label's letters, and of other text.
    layers = places[:, 7]
    mine, other = layers == 0, layers == 1
    distance = _signed_distance(glyph_ids[mine], places[mine], glyphs, u, v)
    # 4. Ground: a colour, a picture's differences, a ramp of light.
    ground = _ground(row, grounds, x, y)
    painted = through = row["show_through"] * (ground - row["ground_colour"])
    if row["ink_strength"] != 0:
        texture = _picture(grounds.pictures[int(row["ink"])], row["ink_matrix"], x, y) - row["ink_centre"]
        painted = through + row["ink_strength"] * texture
    ramp = (row["fill_ramp"][0] * u + row["fill_ramp"][1] * v)[..., None]
    fill = row["fill"] + ramp + painted

    # 5. From the back to the front, each over what is there: plate, rule, other text, shadow, outline, fill.
    image = ground
    if row["plate_opacity"] > 0:
        inside = _plate_distance(row, plane_u, plane_v)
        plate = _coverage(inside, footprint) * row["plate_opacity"]
        image = _over(image, row["plate_colour"] + through, plate)
        if row["plate_border"] > 0:
            edge = row["plate_border"] / 2
            image = _over(image, fill, _coverage(edge - np.abs(inside - 2 * edge), footprint) * row["plate_opacity"])
    if row["rule"][1] > 0:
        image = _over(image, fill, _coverage(row["rule"][1] - np.abs(v - row["rule"][0]), footprint))
    if row["other_opacity"] > 0 and other.any():
        far = _signed_distance(glyph_ids[other], places[other], glyphs, u, v)
        image = _over(image, row["other_colour"] + painted, _coverage(far, footprint) * row["other_opacity"])
    steps = int(row["shadow_steps"])
    if steps:
        # A shadow is the letters at one other place; an extrusion at several on the way there.
        cast = np.full_like(distance, FAR)
        for step in range(1, steps + 1):
            shift_u, shift_v = row["shadow_offset"] * np.float32(step / steps)
            moved = _signed_distance(glyph_ids[mine], places[mine], glyphs, u - shift_u, v - shift_v)
            cast = np.maximum(cast, moved)
        edge = cast + row["weight"] + row["outline"]
        shadow = _coverage(edge, footprint + row["shadow_softness"]) * row["shadow_opacity"]
        image = _over(image, row["shadow_colour"] + painted, shadow)
    stroke = distance + row["weight"]
    if row["outline_opacity"] > 0:
        outline = _coverage(stroke + row["outline"], footprint + row["outline_softness"]) * row["outline_opacity"]
        image = _over(image, row["outline_colour"] + painted, outline)
    image = _over(image, fill, _coverage(stroke, footprint) * row["fill_opacity"])
    pixels: NDArray[np.uint8] = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return pixels


def _text_plane(matrix: Array, x: Array, y: Array, height: int, width: int) -> tuple[Array, Array, Array]:
    m = matrix.reshape(3, 3)
    w = m[2, 0] * x + m[2, 1] * y + m[2, 2]
    u = (m[0, 0] * x + m[0, 1] * y + m[0, 2]) / w
    v = (m[1, 0] * x + m[1, 1] * y + m[1, 2]) / w
    # The area that a projective map makes of a unit square is |det| / |w|**3; its side is the pixel's size in em.
    area = np.abs(_determinant(m)) / (height * width)
    return u, v, np.sqrt(area / np.abs(w) ** 3).astype(np.float32)


def _determinant(m: Array) -> np.float32:
    return np.float32(
        m[0, 0] * (m[1, 1] * m[2, 2] - m[1, 2] * m[2, 1])
        - m[0, 1] * (m[1, 0] * m[2, 2] - m[1, 2] * m[2, 0])
        + m[0, 2] * (m[1, 0] * m[2, 1] - m[1, 1] * m[2, 0])
    )


def _straightened(row: _Row, u: Array, v: Array) -> tuple[Array, Array]:
    amplitude, frequency, phase = row["wave"]
    if amplitude != 0:
        v = v + amplitude * np.sin(frequency * u + phase)
    curvature, middle = row["arc"]
    if curvature != 0:
        # The baseline is a circle of radius 1 / curvature below (or above) its middle: the angle becomes u, and how
        # much further from the centre a point lies becomes -v.
        across, down = curvature * (u - middle), 1 - curvature * v
        u = middle + np.arctan2(across, down) / curvature
        v = (1 - np.sqrt(across * across + down * down)) / curvature
    return u, v


def _signed_distance(glyph_ids: NDArray[np.int32], places: Array, glyphs: GlyphTable, u: Array, v: Array) -> Array:
    """Return the largest signed distance over some glyphs, in em, (H, W): positive within a letter."""
    best = np.full(u.shape, FAR, np.float32)
    # Only rows and columns of the image that show some of a glyph's width are looked at; the rest cannot be inside.
    least = u.min(axis=0), u.min(axis=1)
    most = u.max(axis=0), u.max(axis=1)
    for glyph, place in zip(glyph_ids.tolist(), places, strict=True):
        box = glyphs.boxes[glyph].tolist()
        first, last = _extent(place, box)
        columns, rows = (_span((low <= last) & (high >= first)) for low, high in zip(least, most, strict=True))
        if rows.stop and columns.stop:
            part = best[rows, columns]
            _add_glyph(part, place, box, glyphs.distances, u[rows, columns], v[rows, columns])
    return best


def _extent(place: Array, box: list[int]) -> tuple[float, float]:
    """Return the least and the largest u of a glyph's box."""
    pen_u, _, xu, xv, yu, yv = place[:6].tolist()
    _, left, top, across, down = box
    scale = 1 / (xu * yv - xv * yu)
    ends = [(yv * x - xv * y) * scale for x in (left, left + across) for y in (top, top + down)]
    return pen_u + min(ends), pen_u + max(ends)


def _span(wanted: NDArray[np.bool_]) -> slice:
    """Return the smallest slice with all wanted places; empty where there are none."""
    places = np.flatnonzero(wanted)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _add_glyph(best: Array, place: Array, box: list[int], distances: NDArray[np.uint8], u: Array, v: Array) -> None:
    """Raise `best` to the signed distances of one glyph, where they are larger."""
    pen_u, pen_v, xu, xv, yu, yv, size, _ = place
    offset, left, top, across, down = box
    near_u, near_v = u - pen_u, v - pen_v
    x = xu * near_u + xv * near_v - left
    y = yu * near_u + yv * near_v - top
    inside = (x >= 0) & (x <= across - 1) & (y >= 0) & (y <= down - 1)
    x, y = x[inside], y[inside]
    left_of, above = np.minimum(x.astype(np.int32), across - 2), np.minimum(y.astype(np.int32), down - 2)
    share_x, share_y = x - left_of, y - above
    first = offset + above * across + left_of
    taken = [distances[first + step].astype(np.float32) for step in (0, 1, across, across + 1)]
    upper = taken[0] + share_x * (taken[1] - taken[0])
    lower = taken[2] + share_x * (taken[3] - taken[2])
    byte = upper + share_y * (lower - upper)
    found = (byte - 128) * (size / np.float32(STEPS_PER_PIXEL * EM_PIXELS))
    best[inside] = np.maximum(best[inside], found)


def _coverage(distance: Array, softness: Array) -> Array:
    """Return how much of a pixel lies within an edge: 0..1, a ramp as wide as the pixel (or the softness asked for)."""
    return np.clip(0.5 + distance / softness, 0, 1)


def _over(image: Array, colour: Array, coverage: Array) -> Array:
    return image + coverage[..., None] * (np.clip(colour, 0, 255) - image)


def _plate_distance(row: _Row, u: Array, v: Array) -> Array:
    """Return the signed distance to a rectangle with round corners, em, positive inside."""
    left, top, right, bottom = row["plate"]
    radius = row["plate_radius"]
    beyond_u = np.abs(u - (left + right) / 2) - (right - left) / 2 + radius
    beyond_v = np.abs(v - (top + bottom) / 2) - (bottom - top) / 2 + radius
    outside = np.hypot(np.maximum(beyond_u, 0), np.maximum(beyond_v, 0))
    return radius - outside - np.minimum(np.maximum(beyond_u, beyond_v), 0)


def _ground(row: _Row, grounds: GroundTable, x: Array, y: Array) -> Array:
    picture = _picture(grounds.pictures[int(row["ground"])], row["ground_matrix"], x, y)
    ramp = row["ground_ramp"][0] * (x - 0.5) + row["ground_ramp"][1] * (y - 0.5)
    colour = row["ground_colour"] + row["ground_strength"] * (picture - row["ground_centre"]) + ramp[..., None]
    return np.clip(colour, 0, 255).astype(np.float32)


def _picture(picture: NDArray[np.uint8], matrix: Array, x: Array, y: Array) -> Array:
    """Return pixels of a picture that repeats by mirroring, bilinear, float32 (H, W, 3)."""
    side = len(picture)
    if matrix[1] == 0 and matrix[3] == 0:  # not turned: rows and columns are fetched one after the other
        rows = _along(picture, matrix[4] * y[:, 0] + matrix[5], side, axis=0)
        return _along(rows, matrix[0] * x[0] + matrix[2], side, axis=1)
    across = matrix[0] * x + matrix[1] * y + matrix[2]
    down = matrix[3] * x + matrix[4] * y + matrix[5]
    left, top = np.floor(across), np.floor(down)
    share_x, share_y = (across - left)[..., None], (down - top)[..., None]
    x0, x1 = (_mirrored(left.astype(np.int32) + step, side) for step in (0, 1))
    y0, y1 = (_mirrored(top.astype(np.int32) + step, side) for step in (0, 1))
    corners = [picture[a, b].astype(np.float32) for a, b in ((y0, x0), (y0, x1), (y1, x0), (y1, x1))]
    upper = corners[0] + share_x * (corners[1] - corners[0])
    lower = corners[2] + share_x * (corners[3] - corners[2])
    return upper + share_y * (lower - upper)


def _along(picture: Array, place: Array, side: int, axis: int) -> Array:
    """Return a picture interpolated at some places along one axis, float32."""
    first = np.floor(place)
    share = (place - first).reshape([-1 if dimension == axis else 1 for dimension in range(3)])
    one, next_one = (
        np.take(picture, _mirrored(first.astype(np.int32) + step, side), axis).astype(np.float32) for step in (0, 1)
    )
    return one + share * (next_one - one)


def _mirrored(place: NDArray[np.int32], side: int) -> NDArray[np.int32]:
    """Return places within 0..side - 1; `side` is a power of two."""
    place = place & (2 * side - 1)
    return np.where(place < side, place, 2 * side - 1 - place)


def ground_cells(pictures: NDArray[np.uint8]) -> GroundTable:
    """Return a bank of grounds with the brightness and colour of its cells, from uint8 (N, S, S, 3) pictures.

    Raises:
        ValueError: the pictures are not square, or their side is no power of two of at least 8.
    """
    count, side = pictures.shape[:2]
    if pictures.shape != (count, side, side, 3) or side < 8 or side & (side - 1):
        raise ValueError(f"grounds must be (N, S, S, 3) with S a power of two of at least 8, not {pictures.shape}")
    cells = pictures.reshape(count, 8, side // 8, 8, side // 8, 3).swapaxes(2, 3).astype(np.float32)
    return GroundTable(
        pictures, cells.mean(axis=(3, 4), dtype=np.float32), (cells @ LUMA).std(axis=(3, 4), dtype=np.float32)
    )
