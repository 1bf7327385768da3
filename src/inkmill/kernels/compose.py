"""Synthetic text as a GPU kernel: every pixel of a batch drawn from its sample's row of numbers, in one pass.

A program draws one tile of one image. It walks over the sample's glyphs and looks into the atlas only for those whose
box meets the tile; shadow, plate, other text and texture cost nothing where a row has none. What is computed, and in
which order, is what `inkmill.synth.compose` says.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from inkmill.kernels.rounding import nearest

TILE = 8, 8
"""Rows and columns of the output that one program draws."""


def compose(
    values: Tensor,
    glyphs: Tensor,
    places: Tensor,
    distances: Tensor,
    boxes: Tensor,
    pictures: Tensor,
    size: tuple[int, int],
    columns: Mapping[str, int],
    steps_per_em: float,
    widths: Tensor | None = None,
    tile: tuple[int, int] = TILE,
) -> Tensor:
    """Draw the images of a table of synthetic text.

    Args:
        values: float32 (B, columns), the rows.
        glyphs: int32 (B, G), glyphs of the atlas, -1 for none (they come last).
        places: float32 (B, G, 8), where they stand.
        distances: uint8 (N,), the atlas.
        boxes: int32 (glyphs, 5), offset, left, top, width, height in the atlas.
        pictures: uint8 (N, S, S, 4), the grounds as RGB and a byte that is not read; S a power of two.
        size: rows and columns of the images, in pixels.
        columns: where each part of a row begins, by name.
        steps_per_em: steps of the atlas's distances an em.
        widths: int32 (B,), columns that are drawn, the last of which is repeated to the right; None for all.
        tile: see TILE.

    Returns:
        uint8 (B, rows, columns, 3), RGB.
    """
    (height, width), batch = size, len(values)
    values, glyphs, places = values.contiguous(), glyphs.contiguous(), places.contiguous()
    out = torch.empty((batch, height, width, 3), dtype=torch.uint8, device=values.device)
    down, across = tile
    _compose[(batch, triton.cdiv(width, across), triton.cdiv(height, down))](
        values,
        glyphs,
        places,
        distances,
        boxes,
        pictures.view(torch.int32),
        glyphs if widths is None else widths,
        out,
        height,
        width,
        glyphs.shape[1],
        values.shape[1],
        pictures.shape[1],
        1.0 / steps_per_em,
        PADDED=widths is not None,
        ACROSS=across,
        DOWN=down,
        num_warps=max(1, across * down // 128),
        **{name.upper(): columns[name] for name in _COLUMNS},
    )
    return out


_COLUMNS = (
    *("matrix", "wave", "arc", "weight", "fill", "fill_opacity", "fill_ramp", "outline", "outline_softness"),
    *("outline_colour", "outline_opacity", "shadow_steps", "shadow_offset", "shadow_softness", "shadow_colour"),
    *("shadow_opacity", "other_colour", "other_opacity", "plate", "plate_radius", "plate_colour", "plate_opacity"),
    *("plate_border", "rule", "ground", "ground_matrix", "ground_colour", "ground_strength", "ground_centre"),
    *("ground_ramp", "ink", "ink_matrix", "ink_strength", "ink_centre", "show_through"),
)
"""The parts of a row that the kernel reads."""


@triton.jit  # type: ignore[untyped-decorator]
def _compose(  # type: ignore[no-untyped-def]
    values,
    glyphs,
    places,
    distances,
    boxes,
    pictures,
    widths,
    out,
    height,
    width,
    most_glyphs,
    columns,
    side,
    em_per_step,
    PADDED: tl.constexpr,
    ACROSS: tl.constexpr,
    DOWN: tl.constexpr,
    MATRIX: tl.constexpr,
    WAVE: tl.constexpr,
    ARC: tl.constexpr,
    WEIGHT: tl.constexpr,
    FILL: tl.constexpr,
    FILL_OPACITY: tl.constexpr,
    FILL_RAMP: tl.constexpr,
    OUTLINE: tl.constexpr,
    OUTLINE_SOFTNESS: tl.constexpr,
    OUTLINE_COLOUR: tl.constexpr,
    OUTLINE_OPACITY: tl.constexpr,
    SHADOW_STEPS: tl.constexpr,
    SHADOW_OFFSET: tl.constexpr,
    SHADOW_SOFTNESS: tl.constexpr,
    SHADOW_COLOUR: tl.constexpr,
    SHADOW_OPACITY: tl.constexpr,
    OTHER_COLOUR: tl.constexpr,
    OTHER_OPACITY: tl.constexpr,
    PLATE: tl.constexpr,
    PLATE_RADIUS: tl.constexpr,
    PLATE_COLOUR: tl.constexpr,
    PLATE_OPACITY: tl.constexpr,
    PLATE_BORDER: tl.constexpr,
    RULE: tl.constexpr,
    GROUND: tl.constexpr,
    GROUND_MATRIX: tl.constexpr,
    GROUND_COLOUR: tl.constexpr,
    GROUND_STRENGTH: tl.constexpr,
    GROUND_CENTRE: tl.constexpr,
    GROUND_RAMP: tl.constexpr,
    INK: tl.constexpr,
    INK_MATRIX: tl.constexpr,
    INK_STRENGTH: tl.constexpr,
    INK_CENTRE: tl.constexpr,
    SHOW_THROUGH: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    pixel = tl.arange(0, ACROSS * DOWN)
    column = tl.program_id(1) * ACROSS + pixel % ACROSS
    line = tl.program_id(2) * DOWN + pixel // ACROSS
    row = values + sample * columns
    ids = glyphs + sample * most_glyphs
    stand = places + sample * most_glyphs * 8
    drawn = width
    if PADDED:
        drawn = tl.load(widths + sample)
    x = (tl.minimum(column, drawn - 1).to(tl.float32) + 0.5) / drawn
    y = (line.to(tl.float32) + 0.5) / height

    # 1. Output pixel -> text plane, and how much of it the pixel covers: the side of |det| / |w|**3.
    m = row + MATRIX
    a, b, c = tl.load(m), tl.load(m + 1), tl.load(m + 2)
    d, e, f = tl.load(m + 3), tl.load(m + 4), tl.load(m + 5)
    g, h, i = tl.load(m + 6), tl.load(m + 7), tl.load(m + 8)
    w = g * x + h * y + i
    plane_u = (a * x + b * y + c) / w
    plane_v = (d * x + e * y + f) / w
    area = tl.abs(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)) / (height * drawn)
    w = tl.abs(w)
    footprint = tl.sqrt(area / (w * w * w))
    # 2. Text plane -> along the baseline: the wave, then the arc.
    u, v = plane_u, plane_v
    amplitude = tl.load(row + WAVE)
    if amplitude != 0:
        v = v + amplitude * tl.sin(tl.load(row + WAVE + 1) * u + tl.load(row + WAVE + 2))
    curvature = tl.load(row + ARC)
    if curvature != 0:
        middle = tl.load(row + ARC + 1)
        across, down = curvature * (u - middle), 1 - curvature * v
        u = middle + _angle(across, down) / curvature
        v = (1 - tl.sqrt(across * across + down * down)) / curvature
    # 3. Signed distances to the label's letters and to other text.
    other_opacity = tl.load(row + OTHER_OPACITY)
    stroke, far = _distances(ids, stand, distances, boxes, u, v, most_glyphs, em_per_step, other_opacity > 0)
    stroke += tl.load(row + WEIGHT)
    # 4. Ground: a colour, a picture's differences, a ramp of light; and the texture on what is painted.
    red, green, blue = _picture(pictures, tl.load(row + GROUND), row + GROUND_MATRIX, side, x, y)
    strength = tl.load(row + GROUND_STRENGTH)
    light = tl.load(row + GROUND_RAMP) * (x - 0.5) + tl.load(row + GROUND_RAMP + 1) * (y - 0.5)
    colour, centre = row + GROUND_COLOUR, row + GROUND_CENTRE
    ground_red, ground_green, ground_blue = tl.load(colour), tl.load(colour + 1), tl.load(colour + 2)
    red = _limited(ground_red + strength * (red - tl.load(centre)) + light)
    green = _limited(ground_green + strength * (green - tl.load(centre + 1)) + light)
    blue = _limited(ground_blue + strength * (blue - tl.load(centre + 2)) + light)
    through = tl.load(row + SHOW_THROUGH)
    through_red, through_green = through * (red - ground_red), through * (green - ground_green)
    through_blue = through * (blue - ground_blue)
    paint_red, paint_green, paint_blue = through_red, through_green, through_blue
    strength = tl.load(row + INK_STRENGTH)
    if strength != 0:
        ink_red, ink_green, ink_blue = _picture(pictures, tl.load(row + INK), row + INK_MATRIX, side, x, y)
        grey = tl.load(row + INK_CENTRE)
        paint_red += strength * (ink_red - grey)
        paint_green += strength * (ink_green - grey)
        paint_blue += strength * (ink_blue - grey)
    ramp = tl.load(row + FILL_RAMP) * u + tl.load(row + FILL_RAMP + 1) * v
    fill_red = tl.load(row + FILL) + ramp + paint_red
    fill_green = tl.load(row + FILL + 1) + ramp + paint_green
    fill_blue = tl.load(row + FILL + 2) + ramp + paint_blue

    # 5. From the back to the front, each over what is there: plate, rule, other text, shadow, outline, fill.
    opacity = tl.load(row + PLATE_OPACITY)
    if opacity > 0:
        inside = _in_plate(row + PLATE, tl.load(row + PLATE_RADIUS), plane_u, plane_v)
        share = _coverage(inside, footprint) * opacity
        red = _over(red, tl.load(row + PLATE_COLOUR) + through_red, share)
        green = _over(green, tl.load(row + PLATE_COLOUR + 1) + through_green, share)
        blue = _over(blue, tl.load(row + PLATE_COLOUR + 2) + through_blue, share)
        half = tl.load(row + PLATE_BORDER) / 2
        if half > 0:
            share = _coverage(half - tl.abs(inside - 2 * half), footprint) * opacity
            red, green = _over(red, fill_red, share), _over(green, fill_green, share)
            blue = _over(blue, fill_blue, share)
    half = tl.load(row + RULE + 1)
    if half > 0:
        share = _coverage(half - tl.abs(v - tl.load(row + RULE)), footprint)
        red, green = _over(red, fill_red, share), _over(green, fill_green, share)
        blue = _over(blue, fill_blue, share)
    if other_opacity > 0:
        share = _coverage(far, footprint) * other_opacity
        red = _over(red, tl.load(row + OTHER_COLOUR) + paint_red, share)
        green = _over(green, tl.load(row + OTHER_COLOUR + 1) + paint_green, share)
        blue = _over(blue, tl.load(row + OTHER_COLOUR + 2) + paint_blue, share)
    outline = tl.load(row + OUTLINE)
    steps = tl.load(row + SHADOW_STEPS).to(tl.int32)
    if steps > 0:
        cast = stroke * 0 - 1.0
        for step in range(1, steps + 1):
            part = step / steps.to(tl.float32)
            moved_u = u - tl.load(row + SHADOW_OFFSET) * part
            moved_v = v - tl.load(row + SHADOW_OFFSET + 1) * part
            moved, _ = _distances(ids, stand, distances, boxes, moved_u, moved_v, most_glyphs, em_per_step, False)
            cast = tl.maximum(cast, moved)
        edge = cast + tl.load(row + WEIGHT) + outline
        share = _coverage(edge, footprint + tl.load(row + SHADOW_SOFTNESS)) * tl.load(row + SHADOW_OPACITY)
        red = _over(red, tl.load(row + SHADOW_COLOUR) + paint_red, share)
        green = _over(green, tl.load(row + SHADOW_COLOUR + 1) + paint_green, share)
        blue = _over(blue, tl.load(row + SHADOW_COLOUR + 2) + paint_blue, share)
    opacity = tl.load(row + OUTLINE_OPACITY)
    if opacity > 0:
        share = _coverage(stroke + outline, footprint + tl.load(row + OUTLINE_SOFTNESS)) * opacity
        red = _over(red, tl.load(row + OUTLINE_COLOUR) + paint_red, share)
        green = _over(green, tl.load(row + OUTLINE_COLOUR + 1) + paint_green, share)
        blue = _over(blue, tl.load(row + OUTLINE_COLOUR + 2) + paint_blue, share)
    share = _coverage(stroke, footprint) * tl.load(row + FILL_OPACITY)
    red, green, blue = _over(red, fill_red, share), _over(green, fill_green, share), _over(blue, fill_blue, share)

    to = out + (sample * height * width + line * width + column) * 3
    in_image = (line < height) & (column < width)
    tl.store(to, nearest(_limited(red)).to(tl.uint8), mask=in_image)
    tl.store(to + 1, nearest(_limited(green)).to(tl.uint8), mask=in_image)
    tl.store(to + 2, nearest(_limited(blue)).to(tl.uint8), mask=in_image)


@triton.jit
def _distances(ids, stand, distances, boxes, u, v, most_glyphs, em_per_step, with_other):  # type: ignore[no-untyped-def]
    """Return the largest signed distance over the label's glyphs, and over the other ones, in em; -1 where none is."""
    mine = u * 0 - 1.0
    other = mine
    number = 0
    glyph = tl.load(ids)
    while glyph >= 0:
        place = stand + number * 8
        layer = tl.load(place + 7)
        if (layer == 0) | with_other:
            box = boxes + glyph * 5
            across, down = tl.load(box + 3), tl.load(box + 4)
            near_u, near_v = u - tl.load(place), v - tl.load(place + 1)
            x = tl.load(place + 2) * near_u + tl.load(place + 3) * near_v - tl.load(box + 1)
            y = tl.load(place + 4) * near_u + tl.load(place + 5) * near_v - tl.load(box + 2)
            inside = (x >= 0) & (x <= across - 1) & (y >= 0) & (y <= down - 1)
            if tl.max(inside.to(tl.int32), 0) > 0:
                left = tl.minimum(x.to(tl.int32), across - 2)
                above = tl.minimum(y.to(tl.int32), down - 2)
                share_x, share_y = x - left, y - above
                first = distances + tl.load(box) + above * across + left
                p = tl.load(first, mask=inside, other=0).to(tl.float32)
                q = tl.load(first + 1, mask=inside, other=0).to(tl.float32)
                upper = p + share_x * (q - p)
                p = tl.load(first + across, mask=inside, other=0).to(tl.float32)
                q = tl.load(first + across + 1, mask=inside, other=0).to(tl.float32)
                lower = p + share_x * (q - p)
                found = (upper + share_y * (lower - upper) - 128) * (tl.load(place + 6) * em_per_step)
                found = tl.where(inside, found, -1.0)
                if layer == 0:
                    mine = tl.maximum(mine, found)
                else:
                    other = tl.maximum(other, found)
        number += 1
        glyph = -1
        if number < most_glyphs:
            glyph = tl.load(ids + number)
    return mine, other


@triton.jit
def _picture(pictures, number, matrix, side, x, y):  # type: ignore[no-untyped-def]
    """Return red, green and blue of a picture that repeats by mirroring, bilinear."""
    picture = pictures + number.to(tl.int64) * side * side
    across = tl.load(matrix) * x + tl.load(matrix + 1) * y + tl.load(matrix + 2)
    down = tl.load(matrix + 3) * x + tl.load(matrix + 4) * y + tl.load(matrix + 5)
    left, above = tl.floor(across), tl.floor(down)
    share_x, share_y = across - left, down - above
    left, above = left.to(tl.int32), above.to(tl.int32)
    x0, x1 = _mirrored(left, side), _mirrored(left + 1, side)
    y0, y1 = _mirrored(above, side) * side, _mirrored(above + 1, side) * side
    p, q = tl.load(picture + y0 + x0), tl.load(picture + y0 + x1)
    r, s = tl.load(picture + y1 + x0), tl.load(picture + y1 + x1)
    red = _between(p & 255, q & 255, r & 255, s & 255, share_x, share_y)
    green = _between((p >> 8) & 255, (q >> 8) & 255, (r >> 8) & 255, (s >> 8) & 255, share_x, share_y)
    blue = _between((p >> 16) & 255, (q >> 16) & 255, (r >> 16) & 255, (s >> 16) & 255, share_x, share_y)
    return red, green, blue


@triton.jit
def _between(p, q, r, s, share_x, share_y):  # type: ignore[no-untyped-def]
    p, r = p.to(tl.float32), r.to(tl.float32)
    upper = p + share_x * (q.to(tl.float32) - p)
    lower = r + share_x * (s.to(tl.float32) - r)
    return upper + share_y * (lower - upper)


@triton.jit
def _mirrored(place, side):  # type: ignore[no-untyped-def]
    place = place & (2 * side - 1)
    return tl.where(place < side, place, 2 * side - 1 - place)


@triton.jit
def _in_plate(plate, radius, u, v):  # type: ignore[no-untyped-def]
    """Return the signed distance to a rectangle with round corners, em, positive inside."""
    left, top, right, bottom = tl.load(plate), tl.load(plate + 1), tl.load(plate + 2), tl.load(plate + 3)
    beyond_u = tl.abs(u - (left + right) / 2) - (right - left) / 2 + radius
    beyond_v = tl.abs(v - (top + bottom) / 2) - (bottom - top) / 2 + radius
    out_u, out_v = tl.maximum(beyond_u, 0.0), tl.maximum(beyond_v, 0.0)
    return radius - tl.sqrt(out_u * out_u + out_v * out_v) - tl.minimum(tl.maximum(beyond_u, beyond_v), 0.0)


@triton.jit
def _coverage(distance, softness):  # type: ignore[no-untyped-def]
    return tl.minimum(tl.maximum(0.5 + distance / softness, 0.0), 1.0)


@triton.jit
def _limited(value):  # type: ignore[no-untyped-def]
    return tl.minimum(tl.maximum(value, 0.0), 255.0)


@triton.jit
def _over(below, colour, share):  # type: ignore[no-untyped-def]
    return below + share * (_limited(colour) - below)


@triton.jit
def _angle(across, down):  # type: ignore[no-untyped-def]
    """Return the arc tangent of across / down in its quadrant, to 2e-7; the interpreter does not know Triton's own."""
    wide, tall = tl.abs(across), tl.abs(down)
    share = tl.minimum(wide, tall) / tl.maximum(tl.maximum(wide, tall), 1e-30)
    # From 0..1 to within tan(pi / 8), then a polynomial (Cephes, S. Moshier).
    steep = share > 0.41421356
    t = tl.where(steep, (share - 1) / (share + 1), share)
    z = t * t
    angle = (((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1) * z * t + t
    angle += tl.where(steep, 0.78539816339, 0.0)
    angle = tl.where(wide > tall, 1.57079632679 - angle, angle)
    angle = tl.where(down < 0, 3.14159265359 - angle, angle)
    return tl.where(across < 0, -angle, angle)
