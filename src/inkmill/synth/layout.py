"""Layout: where the letters of a label stand in the text plane, and which window of that plane the image shows.

Written once for NumPy and for torch, whose functions of the same names do the same (`xp` is one or the other), for
whole batches: (B,) is a number a sample, (B, L) one a letter. Lengths are em of the label's font, v points down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inkmill.synth.params import EM_PIXELS

Number = Any
"""float64 (B,) or (B, L), of NumPy or torch, or a plain float for all."""
Matrix = list[list[Number]]
"""3 x 3 numbers a sample."""

_EDGE_POINTS = 9  # along the upper and the lower edge of the text, which an arc bends
_MIN_ASPECT = 0.3  # of an image: an upright stroke alone still gets so much width


@dataclass
class Style:
    """How the letters of a run of text are set, each (B,).

    Attributes:
        tracking: em between letters beside their advances.
        stretch: factor of the letters' widths.
        slant: tangent of the angle that letters lean to the right.
        size: em of the text plane that an em of these letters takes.
    """

    tracking: Number
    stretch: Number
    slant: Number
    size: Number


@dataclass
class Run:
    """A run of text, set.

    Attributes:
        pens: (B, L), u of each letter's pen.
        width: (B,), advance of the whole run.
        box: four (B,): left, top, right, bottom of its ink.
    """

    pens: Number
    width: Number
    box: tuple[Number, Number, Number, Number]


def set_run(xp: Any, style: Style, advances: Number, ink: Number, shown: Number, drawn: Number) -> Run:
    """Set letters one after the other.

    Args:
        xp: numpy or torch.
        style: how.
        advances: (B, L), em.
        ink: (B, L, 4), left, top, right and bottom of the outlines from the pen, em.
        shown: bool (B, L), letters of the text; the rest is padding.
        drawn: bool (B, L), those of them with an outline.
    """
    size, stretch, slant = (part[:, None] for part in (style.size, style.stretch, style.slant))
    steps = xp.where(shown, size * (advances * stretch + style.tracking[:, None]), 0.0)
    ends = xp.cumsum(steps, axis=1)
    pens = ends - steps
    left, top, right, bottom = (ink[:, :, side] for side in range(4))
    # A slanted letter reaches furthest to the left at its foot, and to the right at its head, or the other way around.
    lean_least = xp.minimum(-slant * top, -slant * bottom)
    lean_most = xp.maximum(-slant * top, -slant * bottom)
    far = 1e3
    edges = (
        xp.amin(xp.where(drawn, pens + size * (left * stretch + lean_least), far), axis=1),
        xp.amin(xp.where(drawn, size * top, far), axis=1),
        xp.amax(xp.where(drawn, pens + size * (right * stretch + lean_most), -far), axis=1),
        xp.amax(xp.where(drawn, size * bottom, -far), axis=1),
    )
    # Text without any ink (spaces) still has a place: the box of an x.
    empty = ~drawn.any(axis=1)
    width = ends[:, -1]
    other = (0.0, -0.5, width + 0.1, 0.0)
    box = tuple(xp.where(empty, there, edge) for there, edge in zip(other, edges, strict=True))
    return Run(pens, width, (box[0], box[1], box[2], box[3]))


def places_of(xp: Any, style: Style, u: Number, v: Number, turn: Number, grow: Number, layer: Number) -> list[Number]:
    """Return the places of letters as `params.PLACE` wants them: eight (B, L).

    Args:
        xp: numpy or torch.
        style: how they are set.
        u, v: (B, L), their pens.
        turn: (B, L), radians that each is turned by, clockwise.
        grow: (B, L), factor of the size of each.
        layer: (B,) or a number.
    """
    size, stretch, slant = (part[:, None] for part in (style.size, style.stretch, style.slant))
    size = size * grow
    cosine, sine = xp.cos(turn), xp.sin(turn)
    # The inverse of: stretch, slant, turn, scale to em.
    pixels = EM_PIXELS / size
    across = pixels / stretch
    rows = [
        across * (cosine - slant * sine),
        across * (sine + slant * cosine),
        -pixels * sine,
        pixels * cosine,
    ]
    return [u, v, *rows, size, layer + 0 * u]


@dataclass
class View:
    """How the camera looks at the text plane, each (B,).

    Attributes:
        turn: radians, clockwise.
        skew_x, skew_y: tangents of how far verticals lean and the line climbs.
        near_x, near_y: how much nearer the right end (the lower edge) is than the other, as a share.
        curvature, middle: of the arc, see `params.COLUMNS`.
        wave: amplitude, frequency, phase, see `params.COLUMNS`.
        margins: left, top, right, bottom, shares of the text's height in the image; negative ones cut.
        upright: 0, or 1 and -1 for text that runs down or up the image.
    """

    turn: Number
    skew_x: Number
    skew_y: Number
    near_x: Number
    near_y: Number
    curvature: Number
    middle: Number
    wave: tuple[Number, Number, Number]
    margins: tuple[Number, Number, Number, Number]
    upright: Number


def look_at(xp: Any, view: View, box: tuple[Number, Number, Number, Number]) -> tuple[Matrix, Number]:
    """Return the matrix from the image's unit square to the text plane, and the image's natural width / height (B,)."""
    left, top, right, bottom = box
    centre_u, centre_v = (left + right) / 2, (top + bottom) / 2
    # 1. From the text plane to the camera's.
    cosine, sine = xp.cos(view.turn), xp.sin(view.turn)
    a, b = cosine - sine * view.skew_y, cosine * view.skew_x - sine
    c, d = sine + cosine * view.skew_y, sine * view.skew_x + cosine
    g, h = view.near_x / (right - left), view.near_y / (bottom - top)
    forward: Matrix = [
        [a, b, -(a * centre_u + b * centre_v)],
        [c, d, -(c * centre_u + d * centre_v)],
        [-g, -h, 1 + g * centre_u + h * centre_v],
    ]
    # 2. The window: what the text's edges, bent and seen like that, just fill, and its margins.
    xs, ys = [], []
    for step in range(_EDGE_POINTS):
        along = left + (right - left) * (step / (_EDGE_POINTS - 1))
        for v in (top, bottom):
            x, y = _project(forward, *_bent(xp, view, along, v))
            xs.append(x)
            ys.append(y)
    x0, x1 = (extreme(xp.stack(xs), axis=0) for extreme in (xp.amin, xp.amax))
    y0, y1 = (extreme(xp.stack(ys), axis=0) for extreme in (xp.amin, xp.amax))
    height = y1 - y0
    x0, y0 = x0 - view.margins[0] * height, y0 - view.margins[1] * height
    x1, y1 = x1 + view.margins[2] * height, y1 + view.margins[3] * height
    more = xp.clip(_MIN_ASPECT * (y1 - y0) - (x1 - x0), 0, None) / 2
    x0, x1 = x0 - more, x1 + more
    width, height = x1 - x0, y1 - y0
    # 3. Image -> window; text that runs down the image has its window turned by a right angle.
    down, up, level = view.upright > 0, view.upright < 0, view.upright == 0
    x_by_x, x_by_y = xp.where(level, width, 0.0), xp.where(down, width, xp.where(up, -width, 0.0))
    y_by_x, y_by_y = xp.where(down, -height, xp.where(up, height, 0.0)), xp.where(level, height, 0.0)
    window: Matrix = [
        [x_by_x, x_by_y, x0 + xp.where(up, width, 0.0)],
        [y_by_x, y_by_y, y0 + xp.where(down, height, 0.0)],
        [0 * x0, 0 * x0, 1 + 0 * x0],
    ]
    # 4. Image -> text plane, scaled so that w is 1 in the middle.
    matrix = _product(_inverse(forward), window)
    w = (matrix[2][0] + matrix[2][1]) / 2 + matrix[2][2]
    aspect = xp.where(level, width / height, height / width)
    return [[entry / w for entry in row] for row in matrix], aspect


def _bent(xp: Any, view: View, u: Number, v: Number) -> tuple[Number, Number]:
    """Return where arc and wave put a point of the straight text: the inverse of what `compose` does."""
    curved = view.curvature != 0
    curvature = xp.where(curved, view.curvature, 1.0)
    angle, radius = curvature * (u - view.middle), 1 - curvature * v
    bent_u = view.middle + radius * xp.sin(angle) / curvature
    bent_v = (1 - radius * xp.cos(angle)) / curvature
    u, v = xp.where(curved, bent_u, u), xp.where(curved, bent_v, v)
    amplitude, frequency, phase = view.wave
    return u, v - amplitude * xp.sin(frequency * u + phase)


def _project(matrix: Matrix, u: Number, v: Number) -> tuple[Number, Number]:
    x, y, w = (row[0] * u + row[1] * v + row[2] for row in matrix)
    return x / w, y / w


def _product(one: Matrix, other: Matrix) -> Matrix:
    columns = list(zip(*other, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in one]


def _inverse(m: Matrix) -> Matrix:
    """Return the inverse up to a factor, which homogeneous coordinates do not see."""

    def minor(row: int, column: int) -> Number:
        (a, b), (c, d) = ([m[i][j] for j in range(3) if j != column] for i in range(3) if i != row)
        return a * d - b * c

    return [[(-1) ** (i + j) * minor(j, i) for j in range(3)] for i in range(3)]
