"""What a sample of synthetic text looks like: strokes, view, plate, ground and colours, sampled for a batch.

Every function takes `draws` and returns columns of the table by their names (`params.COLUMNS`), each a list of (B,)
numbers. Ranges start from SynthTIGER's (Yim et al. 2021) and were changed by looking at sheets beside real crops.
Samples that are `easy` get no effect and hardly any distortion.
"""

from __future__ import annotations

import math
from typing import Any

from inkmill.data.augment.params import LUMA
from inkmill.synth.layout import Number, Style, View
from inkmill.synth.params import REACH, GroundTable

Columns = dict[str, list[Number]]

_DEGREE = math.pi / 180
_LEAST_CONTRAST = 30.0
"""Of 255: brightness of the text and mean brightness of what is behind it differ by more than this."""
_LUMA = [float(weight) for weight in LUMA]


class Draws:
    """Hands out uniform random numbers in a fixed order: the order is part of what a seed means.

    Args:
        xp: numpy or torch.
        numbers: float64 (N, B) in [0, 1).
    """

    def __init__(self, xp: Any, numbers: Number) -> None:
        self.xp = xp
        self._numbers = numbers
        self._next = 0

    def unit(self) -> Number:
        """Return numbers in [0, 1), (B,)."""
        self._next += 1
        return self._numbers[self._next - 1]

    def uniform(self, low: Number, high: Number) -> Number:
        """Return numbers from a range."""
        return low + (high - low) * self.unit()

    def log_uniform(self, low: float, high: float) -> Number:
        """Return numbers from a range, as many from each octave."""
        return low * self.xp.exp(math.log(high / low) * self.unit())

    def chance(self, probability: float) -> Number:
        """Return booleans."""
        return self.unit() < probability

    def bell(self, deviation: float) -> Number:
        """Return numbers around 0, nearly normal, within three deviations: the sum of three uniform ones."""
        return (self.unit() + self.unit() + self.unit() - 1.5) * 2 * deviation

    def one_of(self, choices: list[tuple[float, Number]]) -> Number:
        """Return for each sample one of some numbers, given with their probabilities; the last takes the rest."""
        coin, chosen = self.unit(), choices[-1][1]
        limit = sum(probability for probability, _ in choices[:-1])
        for probability, number in reversed(choices[:-1]):
            chosen = self.xp.where(coin < limit, number, chosen)
            limit -= probability
        return chosen


def letters_style(draws: Draws, easy: Number) -> Style:
    """Return how the letters are set."""
    xp = draws.xp
    wide, close = draws.log_uniform(0.04, 1), draws.uniform(-0.06, 0)
    tracking = draws.one_of([(0.14, wide), (0.14, close), (0.72, draws.bell(0.012))])
    stretch = xp.where(draws.chance(0.65), draws.log_uniform(0.5, 1.2), 1.0)
    slant = xp.where(draws.chance(0.12) & ~easy, draws.uniform(-0.1, 0.35), 0.0)
    return Style(tracking, stretch, slant, 1.0 + 0 * stretch)


def strokes(draws: Draws, easy: Number) -> Columns:
    """Return weight, fill, outline, shadow, and the line along the text."""
    xp = draws.xp
    bolder = draws.one_of([(0.1, draws.uniform(0.01, 0.035)), (0.5, draws.bell(0.008)), (0.4, 0.0)])
    weight = xp.where(easy, xp.clip(bolder, -0.004, 0.015), bolder)
    # 1. Outline: a hard one, or a glow; hollow letters are nothing but outline.
    outlined = draws.chance(0.17) & ~easy
    hollow = outlined & draws.chance(0.12)
    glow = outlined & ~hollow & draws.chance(0.2)
    width = xp.clip(draws.log_uniform(0.015, 0.08), None, REACH - 0.01 - xp.clip(weight, 0, None))
    softness = xp.where(glow, xp.clip(draws.uniform(0.04, 0.15), None, 2 * (REACH - width - weight)), 0.0)
    opacity = xp.where(glow, draws.uniform(0.5, 1), 1.0)
    # 2. Shadow: one soft copy, or an extrusion of several hard ones. Below and to the right more often than not.
    cast = draws.chance(0.36) & ~easy
    extruded = draws.chance(0.45)
    angle = draws.one_of([(0.6, draws.uniform(0, math.pi / 2)), (0.4, draws.uniform(0, 2 * math.pi))])
    far = xp.where(extruded, draws.log_uniform(0.03, 0.2), draws.log_uniform(0.02, 0.2))
    reach = weight + xp.where(outlined, width, 0.0)
    blurred = xp.clip(draws.uniform(0, 0.15), None, 2 * xp.clip(REACH - reach, 0, None))
    # 3. A line under the text, now and then.
    ruled = draws.chance(0.05) & ~easy
    shaded = draws.chance(0.12) & ~easy
    return {
        "weight": [weight],
        "fill_opacity": [xp.where(hollow, 0.0, 1.0)],
        "fill_ramp": [xp.where(shaded, draws.bell(8), 0.0), xp.where(shaded, draws.uniform(-60, 60), 0.0)],
        "outline": [xp.where(outlined, width, 0.0)],
        "outline_softness": [softness],
        "outline_opacity": [xp.where(outlined, opacity, 0.0)],
        "shadow_steps": [xp.where(cast, xp.where(extruded, 4.0, 1.0), 0.0)],
        "shadow_offset": [far * xp.cos(angle), far * xp.sin(angle)],
        "shadow_softness": [xp.where(extruded, 0.0, blurred)],
        "shadow_opacity": [xp.where(cast, xp.where(extruded, 1.0, draws.uniform(0.25, 0.9)), 0.0)],
        "rule": [draws.uniform(0.12, 0.25), xp.where(ruled, draws.log_uniform(0.012, 0.05), 0.0)],
    }


def view_of(draws: Draws, easy: Number, box: tuple[Number, Number, Number, Number]) -> View:
    """Return how the camera looks at text whose ink fills a box of the text plane."""
    xp = draws.xp
    width, height = box[2] - box[0], box[3] - box[1]
    calm = xp.where(easy, 0.0, 1.0)
    # 1. Turned and skewed; long text less, or its box would be nothing but ground.
    turn = draws.one_of([(0.42, draws.bell(2)), (0.3, draws.bell(6)), (0.28, draws.uniform(-30, 30))])
    turn = xp.where(easy, draws.bell(0.7), turn) * _DEGREE * xp.clip(4 * height / width, None, 1)
    skew_x = calm * draws.one_of([(0.7, draws.bell(0.07)), (0.3, draws.uniform(-0.5, 0.5))])
    skew_y = calm * draws.one_of([(0.7, 0.0), (0.3, draws.bell(0.08))]) * xp.clip(3 * height / width, None, 1)
    short = xp.clip(5 * height / width, None, 1)
    near_x = calm * short * draws.one_of([(0.55, 0.0), (0.45, draws.uniform(-0.45, 0.45))])
    near_y = calm * short * draws.one_of([(0.7, 0.0), (0.3, draws.uniform(-0.3, 0.3))])
    # 2. Bent into an arc, whose circle must be larger than the letters, or into a wave.
    angle = draws.uniform(0.3, 2.1) * (1.0 - 2.0 * draws.chance(0.35))
    curvature = angle / width
    deep = 0.5 / xp.clip(xp.maximum(-box[1], box[3]), 0.1, None)
    curvature = xp.clip(curvature, -deep, deep)
    bent = draws.chance(0.12) & ~easy & (abs(curvature) >= 0.01) & (width > 1.2 * height) & (width < 9 * height)
    waved = draws.chance(0.08) & ~easy & ~bent
    wave = (
        xp.where(waved, draws.uniform(0.02, 0.09), 0.0),
        draws.uniform(0.4, 1.4) * 2 * math.pi / width,
        draws.uniform(0, 2 * math.pi),
    )
    # 3. Margins: people draw tight boxes, sometimes loose ones, sometimes they cut.
    kind = draws.unit()
    low = xp.where(kind < 0.12, -0.09, xp.where(kind < 0.6, 0.0, 0.04))
    high = xp.where(kind < 0.12, 0.06, xp.where(kind < 0.6, 0.13, 0.45))
    sides = [draws.uniform(low, high) for _ in range(4)]
    # 4. Some text runs up or down; it is turned enough.
    upright = draws.one_of([(0.028, 1.0), (0.028, -1.0), (0.944, 0.0)])
    upright = xp.where(width > 1.5 * height, upright, 0.0)
    return View(
        turn=xp.where(upright == 0, turn, 0.2 * turn),
        skew_x=skew_x,
        skew_y=skew_y,
        near_x=near_x,
        near_y=near_y,
        curvature=xp.where(bent, curvature, 0.0),
        middle=(box[0] + box[2]) / 2,
        wave=wave,
        margins=(sides[0], sides[1], sides[2], sides[3]),
        upright=upright,
    )


def plate_of(draws: Draws, easy: Number, box: tuple[Number, Number, Number, Number]) -> Columns:
    """Return the plate that some text stands on: a sign, a button, a label."""
    xp = draws.xp
    here = draws.chance(0.1) & ~easy
    pads = [draws.uniform(0.04, 0.4) for _ in range(2)]
    left, top, right, bottom = box
    edges = [left - pads[0], top - pads[1], right + pads[0], bottom + pads[1]]
    half = (edges[3] - edges[1]) / 2
    border = xp.where(draws.chance(0.25), draws.uniform(0.02, 0.06), 0.0)
    solid = xp.where(draws.chance(0.8), 1.0, draws.uniform(0.5, 0.95))
    return {
        "plate": edges,
        "plate_radius": [half * xp.clip(draws.uniform(-0.6, 1), 0, None)],
        "plate_opacity": [xp.where(here, solid, 0.0)],
        "plate_border": [border],
    }


def ground_of(draws: Draws, easy: Number, grounds: GroundTable, aspect: Number) -> tuple[Columns, Number, Number]:
    """Return the ground and the texture of the ink; then whether the ground keeps its picture's colours, and how much
    its brightness varies (B,), of 255.
    """
    xp = draws.xp
    count, side = grounds.means.shape[0], grounds.pictures.shape[1]
    number, matrix = xp.floor(draws.unit() * count), _crop(draws, side, aspect)
    means, deviation = _seen(xp, grounds, number, matrix)
    strength = draws.one_of([(0.55, draws.uniform(0, 0.2)), (0.28, draws.uniform(0.2, 0.7)), (0.17, 1.0)])
    strength = xp.where(easy, draws.uniform(0, 0.3), strength)
    as_it_is = draws.chance(0.5) & (strength == 1.0)
    lit = xp.where(draws.chance(0.5), 1.0, 0.0)
    ink, ink_matrix = xp.floor(draws.unit() * count), _crop(draws, side, aspect)
    ink_means, _ = _seen(xp, grounds, ink, ink_matrix)
    worn = draws.one_of([(0.55, 0.0), (0.3, draws.uniform(0, 0.25)), (0.15, draws.uniform(0.25, 0.6))])
    through = draws.one_of([(0.5, 0.0), (0.5, draws.uniform(0, 0.8))])
    columns: Columns = {
        "ground": [number],
        "ground_matrix": matrix,
        "ground_strength": [strength],
        "ground_centre": means,
        "ground_ramp": [lit * draws.bell(20), lit * draws.bell(14)],
        "ink": [ink],
        "ink_matrix": ink_matrix,
        "ink_strength": [xp.where(easy, 0.2 * worn, worn)],
        "ink_centre": [_brightness(ink_means)],
        "show_through": [through],
    }
    return columns, as_it_is, deviation * strength


def _crop(draws: Draws, side: int, aspect: Number) -> list[Number]:
    """Return a matrix from the image's unit square to some place of a picture, at some scale, mirrored or not."""
    down = draws.log_uniform(12, 90)
    across = down * aspect * (1.0 - 2.0 * draws.chance(0.5))
    return [across, 0 * across, draws.unit() * side, 0 * down, down, draws.unit() * side]


def _seen(xp: Any, grounds: GroundTable, number: Number, matrix: list[Number]) -> tuple[list[Number], Number]:
    """Return mean RGB and the deviation of the brightness of what a crop of a picture shows, from its cells."""
    side = grounds.pictures.shape[1]
    picture = xp.asarray(number, dtype=xp.int64)
    colours, deviations = [], []
    for x in (0.1, 0.3, 0.5, 0.7, 0.9):
        row, column = (
            _cell(xp, start * x + turned * 0.5 + shift, side) for start, turned, shift in (matrix[3:6], matrix[0:3])
        )
        colours.append(grounds.means[picture, row, column])
        deviations.append(grounds.deviations[picture, row, column])
    all_colours = xp.stack(colours)
    means = all_colours.mean(axis=0)
    spread = ((all_colours - means) ** 2).mean(axis=0).mean(axis=1)
    deviation = xp.sqrt((xp.stack(deviations) ** 2).mean(axis=0) + spread)
    return [means[:, channel] for channel in range(3)], deviation


def _cell(xp: Any, place: Number, side: int) -> Number:
    """Return which of eight cells a place lies in, as a picture that repeats by mirroring has it."""
    place = place % (2 * side)
    place = xp.where(place < side, place, 2 * side - 1 - place)
    return xp.asarray(xp.clip(place * (8 / side), 0, 7), dtype=xp.int64)


def colours_of(draws: Draws, columns: Columns, as_it_is: Number, deviation: Number) -> Columns:
    """Return the colours: of the ground, and of all that must be told from it.

    Args:
        draws: the random numbers.
        columns: sampled so far.
        as_it_is: bool (B,), the ground keeps the colours of its picture.
        deviation: (B,), of the ground's brightness.
    """
    xp = draws.xp
    colour, painted = _surface(draws)
    ground = [xp.where(as_it_is, mean, flat) for mean, flat in zip(columns["ground_centre"], colour, strict=True)]
    # 1. The plate is the ground of what stands on it.
    colour, plate_painted = _surface(draws)
    plate = _apart(xp, colour, _brightness(ground), 15.0)
    on_plate = columns["plate_opacity"][0] > 0
    behind = [xp.where(on_plate, one, other) for one, other in zip(plate, ground, strict=True)]
    behind_brightness = _brightness(behind)
    painted = xp.where(on_plate, plate_painted, painted)
    # 2. Some text has much contrast, some little; on an uneven ground it needs more.
    unrest = xp.where(on_plate, 0.0, deviation) * 1.2
    need = xp.maximum(draws.one_of([(0.15, draws.uniform(30, 60)), (0.85, draws.uniform(60, 150))]), unrest)
    need = xp.clip(need, _LEAST_CONTRAST + 1, 150)
    fill = _apart(xp, _paint(draws, painted), behind_brightness, need)
    # 3. An outline is told from the fill, and where it stands alone, from the ground.
    hollow = columns["fill_opacity"][0] == 0
    against = xp.where(hollow, behind_brightness, _brightness(fill))
    outline = _apart(xp, _paint(draws, painted), against, xp.where(hollow, need, 60.0))
    # 4. The sides of raised letters are mostly the letters' colour in less light; shadows are dark.
    sides, dim = _apart(xp, _paint(draws, painted), _brightness(fill), 45.0), draws.uniform(0.25, 0.8)
    alike, dark = draws.chance(0.6), draws.uniform(0, 60)
    shadow = [
        xp.where(columns["shadow_steps"][0] > 1, xp.where(alike, dim * face, side), dark)
        for face, side in zip(fill, sides, strict=True)
    ]
    other = _apart(xp, _paint(draws, painted), behind_brightness, 40.0)
    return {
        "fill": fill,
        "outline_colour": outline,
        "shadow_colour": shadow,
        "other_colour": other,
        "plate_colour": plate,
        "ground_colour": ground,
    }


def _surface(draws: Draws) -> tuple[list[Number], Number]:
    """Return the colour of paper, walls, signs, and which of them are painted in a colour, bool (B,)."""
    value = draws.one_of(
        [(0.36, draws.uniform(0.75, 1)), (0.2, draws.uniform(0.03, 0.25)), (0.44, draws.uniform(0.25, 0.85))]
    )
    painted = draws.chance(0.45)
    saturation = draws.xp.where(painted, draws.uniform(0.3, 0.95), draws.uniform(0, 0.18))
    return _rgb(draws.xp, _hue(draws), saturation, value), painted


def _paint(draws: Draws, on_colour: Number) -> list[Number]:
    """Return the colour of letters: mostly white or black, above all where the ground has a colour, bool (B,)."""
    value = draws.one_of(
        [(0.42, draws.uniform(0.85, 1)), (0.38, draws.uniform(0, 0.22)), (0.2, draws.uniform(0.25, 0.9))]
    )
    coloured = draws.unit() < draws.xp.where(on_colour, 0.25, 0.45)
    saturation = draws.xp.where(coloured, draws.uniform(0.35, 1), draws.uniform(0, 0.12))
    value = draws.xp.where(coloured, draws.uniform(0.3, 1), value)
    return _rgb(draws.xp, _hue(draws), saturation, value)


def _hue(draws: Draws) -> Number:
    """Return hues in 0..1 as people paint: red to yellow, blue, some green, now and then anything."""
    warm, blue, green = draws.bell(0.055) + 0.05, 0.59 + draws.bell(0.035), 0.38 + draws.bell(0.05)
    return draws.one_of([(0.44, warm), (0.28, blue), (0.14, green), (0.14, draws.unit())]) % 1


def _rgb(xp: Any, hue: Number, saturation: Number, value: Number) -> list[Number]:
    """Return RGB 0..255 of hue, saturation and value in 0..1."""
    channels = []
    for sector in (5, 3, 1):
        place = (sector + 6 * hue) % 6
        channels.append(255 * value * (1 - saturation * xp.clip(xp.minimum(place, 4 - place), 0, 1)))
    return channels


def _brightness(colour: list[Number]) -> Number:
    return _LUMA[0] * colour[0] + _LUMA[1] * colour[1] + _LUMA[2] * colour[2]


def _apart(xp: Any, colour: list[Number], other: Number, need: Number) -> list[Number]:
    """Return a colour made lighter or darker, only as far as its brightness differs from another by `need`."""
    brightness = _brightness(colour)
    # To the side on which it is, if there is room, else to the other.
    side = xp.where(brightness >= other, 1.0, -1.0)
    side = xp.where(other + need > 250, -1.0, xp.where(other - need < 5, 1.0, side))
    goal = other + side * xp.clip(side * (brightness - other), need, None)
    goal = xp.clip(goal, 0, 255)
    lighter = xp.clip((goal - brightness) / xp.clip(255 - brightness, 1, None), 0, 1)
    darker = xp.clip(goal / xp.clip(brightness, 1, None), 0, 1)
    return [xp.where(goal > brightness, one + (255 - one) * lighter, one * darker) for one in colour]
