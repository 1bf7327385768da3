"""What lies behind synthetic text: a bank of pictures, made from numbers or cut from a folder of pictures.

Text stands on walls, wood, paper, cloth, leaves and things out of focus. Backgrounds need variety, not realism: noise
of several octaves, gradients, stripes, tiles, weave, fibres, and above all dead leaves (overlapping shapes of all
sizes, which have the statistics of photographs: Lee, Mumford, Huang 2001). A composer shows a third of a picture's
pixel to three in each of its own, so things are drawn at several scales. The same numbers give the same bank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from inkmill.data.pipeline.decode import decode
from inkmill.data.sources.open import find_images
from inkmill.errors import DataError

Pictures = NDArray[np.uint8]
"""uint8 (N, S, S, 3), RGB, S a power of two."""

COUNT = 256
SIDE = 256

_Floats = NDArray[np.float32]


def make_grounds(
    count: int = COUNT, side: int = SIDE, seed: int = 0, folders: Sequence[str] = (), share: float = 0.5
) -> tuple[Pictures, list[str]]:
    """Make a bank of grounds.

    Args:
        count: pictures, at least 1.
        side: their width and height, a power of two of at least 16.
        seed: another one gives other pictures.
        folders: folders, files or globs of pictures, which `share` of the bank is cut from, at three scales.
        share: see folders; the rest is made from numbers.

    Returns:
        uint8 (count, side, side, 3), RGB; and what could not be read, one sentence each.

    Raises:
        DataError: a folder without pictures, or none of them can be read.
        ValueError: a count or a side that cannot be.
    """
    if count < 1 or side < 16 or side & (side - 1):
        raise ValueError(f"a bank needs at least one picture, of a side that is a power of two, not {count} of {side}")
    pictures = np.empty((count, side, side, 3), np.uint8)
    notes: list[str] = []
    cut = round(count * share) if folders else 0
    if cut:
        notes = _cut_from(folders, pictures[:cut], seed)
    for number in range(cut, count):
        rng = np.random.default_rng([seed, number])
        kind = _KINDS[number % len(_KINDS)]
        picture = kind(rng, side)
        pictures[number] = np.clip(np.rint(picture), 0, 255)
    return pictures, notes


def _cut_from(folders: Sequence[str], out: Pictures, seed: int) -> list[str]:
    """Fill `out` with square pieces of pictures: a half, a third or a sixth of the shorter side, or all of it."""
    files = find_images(folders)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(files))
    failed: list[str] = []
    done = turn = 0
    while done < len(out):
        if turn >= len(files) and not done:
            raise DataError(f"{folders[0]}: none of its {len(files):,} pictures can be read ({failed[0]})")
        file = files[order[turn % len(files)]]
        turn += 1
        try:
            picture = decode(Path(file).read_bytes(), 3)
        except (DataError, OSError) as error:
            failed += [f"{file}: {error}"] if len(failed) < turn <= len(files) else []
            continue
        for _ in range(min(4, len(out) - done)):
            out[done] = _piece(picture, len(out[0]), rng)
            done += 1
    return [f"{len(failed)} of {len(files)} pictures for grounds cannot be read, e.g. {failed[0]}"] if failed else []


def _piece(picture: NDArray[np.uint8], side: int, rng: Generator) -> NDArray[np.uint8]:
    height, width = picture.shape[:2]
    size = max(1, round(min(height, width) / rng.choice([1, 2, 3, 6])))
    top, left = rng.integers(height - size + 1), rng.integers(width - size + 1)
    piece = np.ascontiguousarray(picture[top : top + size, left : left + size])
    method = cv2.INTER_AREA if size > side else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(piece, (side, side), interpolation=method), np.uint8)


# Parts of pictures


def _noise(rng: Generator, side: int, first: int, octaves: int, fall: float = 0.5, stretch: int = 1) -> _Floats:
    """Return smooth noise, 0..1, of several octaves: `first` cells a side at first, twice as many each time."""
    total, weight = np.zeros((side, side), np.float32), 1.0
    for octave in range(octaves):
        cells = min(first << octave, side)
        grid = rng.random((cells + 1, max(2, cells // stretch) + 1), np.float32)
        total += weight * np.asarray(cv2.resize(grid, (side, side), interpolation=cv2.INTER_CUBIC), np.float32)
        weight *= fall
    low, high = total.min(), total.max()
    return np.asarray((total - low) / max(high - low, 1e-6), np.float32)


def _colour(rng: Generator) -> _Floats:
    """Return any colour, muted ones more often than bright ones."""
    grey = rng.uniform(20, 235)
    return np.clip(grey + rng.normal(0, rng.choice([4, 12, 45]), 3), 0, 255).astype(np.float32)


def _coloured(rng: Generator, values: _Floats, colours: int = 3) -> _Floats:
    """Return an image of values 0..1 on a scale through some colours."""
    scale = np.stack([_colour(rng) for _ in range(colours)])
    steps = np.linspace(0, 1, colours)
    return np.stack([np.interp(values, steps, scale[:, c]) for c in range(3)], axis=2).astype(np.float32)


def _grain(rng: Generator, picture: _Floats, most: float = 12) -> _Floats:
    sigma = rng.uniform(0, most)
    return picture + rng.normal(0, sigma, picture.shape[:2]).astype(np.float32)[..., None]


def _turned(rng: Generator, side: int) -> tuple[_Floats, _Floats]:
    """Return coordinates 0..1 across and down, turned by any angle."""
    angle = rng.uniform(0, np.pi)
    y, x = np.mgrid[:side, :side].astype(np.float32) / side
    return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)


# Kinds of pictures


def _clouds(rng: Generator, side: int) -> _Floats:
    """Plaster, clouds, stains: noise on a scale of colours."""
    return _grain(rng, _coloured(rng, _noise(rng, side, int(rng.choice([2, 4, 8])), 5, rng.uniform(0.4, 0.75))))


def _gradient(rng: Generator, side: int) -> _Floats:
    """Signs and sky: two or three colours that run into each other, and a little noise."""
    across, down = _turned(rng, side)
    values = across if rng.random() < 0.6 else np.hypot(across - rng.uniform(0, 1), down - rng.uniform(0, 1))
    values = values - values.min()
    return _grain(rng, _coloured(rng, values / values.max() + 0.1 * (_noise(rng, side, 4, 3) - 0.5)), 6)


def _stripes(rng: Generator, side: int) -> _Floats:
    """Shutters, boards, cloth: bands with soft or hard edges."""
    across, _ = _turned(rng, side)
    across = across + rng.choice([0, 0.02, 0.1]) * _noise(rng, side, 4, 3)
    wave = np.sin(across * 2 * np.pi * rng.choice([2, 4, 8, 16, 32]) + rng.uniform(0, 6))
    values = 0.5 + 0.5 * np.tanh(wave * rng.choice([1, 3, 12]))
    return _grain(rng, _coloured(rng, values, 2))


def _wood(rng: Generator, side: int) -> _Floats:
    """Rings and grain along one direction."""
    across, down = _turned(rng, side)
    rings = across * rng.uniform(3, 14) + rng.uniform(0.5, 3) * _noise(rng, side, 2, 3) + 0.2 * np.sin(down * 9)
    values = np.abs(rings % 1 - 0.5) * 2
    fibres = _noise(rng, side, 64, 2, stretch=16)
    base = np.array([rng.uniform(90, 210), rng.uniform(60, 150), rng.uniform(30, 110)], np.float32)
    return base * (0.7 + 0.25 * values + 0.25 * (fibres - 0.5))[..., None]


def _tiles(rng: Generator, side: int) -> _Floats:
    """Bricks, tiles and checks, each a little different, with joints."""
    across, down = np.mgrid[:side, :side][::-1].astype(np.float32) / side * rng.choice([2, 4, 8, 16])
    down = down * rng.choice([1, 1, 2])
    across = across + rng.choice([0, 0.5]) * (np.floor(down) % 2)
    cell = (np.floor(across) * 57 + np.floor(down) * 131).astype(np.int64)
    values = rng.random(4096)[cell % 4096].astype(np.float32)
    if rng.random() < 0.3:
        values = ((np.floor(across) + np.floor(down)) % 2).astype(np.float32)
    picture = _coloured(rng, 0.35 + 0.3 * values + 0.25 * _noise(rng, side, 8, 4), 3)
    joint = np.minimum(across % 1, down % 1) < rng.uniform(0, 0.12)
    return _grain(rng, np.where(joint[..., None], _colour(rng), picture))


def _paper(rng: Generator, side: int) -> _Floats:
    """Paper and board: nearly even, with fibres and folds."""
    base = rng.uniform(190, 250) + rng.normal(0, 6, 3)
    fibres = _noise(rng, side, 32, 3, 0.8, stretch=int(rng.choice([1, 4])))
    folds = np.abs(_noise(rng, side, 2, 3) - 0.5) < 0.008
    values = rng.uniform(4, 25) * (fibres - 0.5) + 14 * (_noise(rng, side, 2, 2) - 0.5) - 18 * folds
    return _grain(rng, base.astype(np.float32) + values[..., None], 5)


def _weave(rng: Generator, side: int) -> _Floats:
    """Cloth and wire: threads over and under each other."""
    across, down = _turned(rng, side)
    count = rng.choice([12, 24, 48])
    over = np.sin(across * np.pi * count), np.sin(down * np.pi * count)
    values = np.where(over[0] * over[1] > 0, np.abs(over[0]), np.abs(over[1])) * (0.7 + 0.3 * _noise(rng, side, 8, 3))
    return _grain(rng, _coloured(rng, values.astype(np.float32), 2))


def _metal(rng: Generator, side: int) -> _Floats:
    """Brushed metal and scratched plates: noise drawn out along one side, with a shine."""
    brushed = _noise(rng, side, 128, 2, stretch=32)
    shine = np.exp(-(((np.arange(side) / side - rng.uniform(0, 1)) / rng.uniform(0.1, 0.5)) ** 2)).astype(np.float32)
    values = rng.uniform(10, 45) * (brushed - 0.5) + rng.uniform(10, 70) * shine
    picture = np.asarray(_colour(rng) * 0.8 + values[..., None], np.float32)
    return np.rot90(picture) if rng.random() < 0.5 else picture


def _dead_leaves(rng: Generator, side: int) -> _Floats:
    """Overlapping shapes of all sizes, small ones more often, each shaded: what photographs are made of."""
    canvas = np.ascontiguousarray(np.broadcast_to(_colour(rng), (side, side, 3)))
    palette = np.stack([_colour(rng) for _ in range(rng.integers(3, 9))])
    smallest, largest = rng.choice([0.01, 0.03, 0.06]), rng.choice([0.15, 0.3, 0.6])
    form = rng.integers(4)  # discs, blades, rectangles, all
    for _ in range(int(rng.choice([60, 150, 400]))):
        # The density of radii falls as r**-3: each scale then covers as much.
        radius = side / np.sqrt(rng.uniform(largest**-2, smallest**-2))
        centre = tuple(rng.integers(0, side, 2).tolist())
        colour = palette[rng.integers(len(palette))] + rng.normal(0, 14, 3)
        kind = form if form < 3 else rng.integers(3)
        turn = rng.uniform(0, 180)
        if kind == 2:
            corners = cv2.boxPoints(
                ((float(centre[0]), float(centre[1])), (2 * radius, radius * rng.uniform(0.2, 2)), turn)
            )
            cv2.fillConvexPoly(canvas, corners.astype(np.int32), colour.tolist(), cv2.LINE_AA)
        else:
            axes = (
                max(1, int(radius)),
                max(1, int(radius * (rng.uniform(0.15, 0.5) if kind else rng.uniform(0.6, 1)))),
            )
            cv2.ellipse(canvas, centre, axes, turn, 0, 360, colour.tolist(), -1, cv2.LINE_AA)
    canvas *= (0.75 + 0.5 * _noise(rng, side, 4, 5, 0.6))[..., None]
    return _grain(rng, canvas, 8)


def _out_of_focus(rng: Generator, side: int) -> _Floats:
    """Dead leaves behind the text, blurred, some with lights."""
    sharp = _dead_leaves(rng, side)
    if rng.random() < 0.4:
        for _ in range(rng.integers(4, 25)):
            centre = tuple(rng.integers(0, side, 2).tolist())
            cv2.circle(sharp, centre, int(rng.integers(2, side // 10)), rng.uniform(180, 255, 3).tolist(), -1)
    return _grain(rng, np.asarray(cv2.GaussianBlur(sharp, (0, 0), side * rng.uniform(0.01, 0.06)), np.float32), 6)


def _leaves(rng: Generator, side: int) -> _Floats:
    """Foliage, gravel, crowds: small shapes of one family of colours, lit from one side."""
    values = _noise(rng, side, int(rng.choice([16, 32])), 3, 0.9)
    lit = values - np.roll(values, (2, 2), (0, 1))
    tint = _colour(rng) if rng.random() < 0.5 else np.array([70, rng.uniform(80, 140), 50], np.float32)
    return _grain(rng, tint * (0.5 + values)[..., None] + 220 * lit[..., None])


def _lines(rng: Generator, side: int) -> _Floats:
    """Clutter: strokes, wires, frames and edges of signs on something else."""
    canvas = _gradient(rng, side) if rng.random() < 0.5 else _clouds(rng, side)
    canvas = np.ascontiguousarray(canvas, np.float32)
    for _ in range(rng.integers(4, 40)):
        ends = rng.integers(-side // 4, side + side // 4, (2, 2)).tolist()
        cv2.line(canvas, ends[0], ends[1], _colour(rng).tolist(), int(rng.choice([1, 1, 2, 4, 9])), cv2.LINE_AA)
    return canvas


_KINDS: tuple[Callable[[Generator, int], _Floats], ...] = (
    *(_dead_leaves, _clouds, _out_of_focus, _gradient, _stripes, _dead_leaves, _wood, _tiles),
    *(_out_of_focus, _paper, _clouds, _weave, _leaves, _metal, _dead_leaves, _lines),
)
"""In turn; what photographs are like comes more often."""
