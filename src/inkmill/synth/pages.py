"""Whole pictures with text whose places are known exactly: scenes of words on grounds, and documents of lines.

They stand in for the photographs and drawn scenes on which detectors are usually trained first. A page depends on
(seed, index) alone. Text is drawn by FreeType, laid onto the page by a matrix, and its region is the box of its ink
moved by that same matrix: so tight as no annotator draws it. In scenes a region is a word, in documents what a
narrow gap separates: a line, or a column's part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import sample_states
from inkmill.data.types import Polygons
from inkmill.errors import MissingExtraError
from inkmill.synth.fonts import CARRIED, find_fonts
from inkmill.synth.grounds import make_grounds
from inkmill.synth.text import TextSampler

Picture = NDArray[np.uint8]
Quad = NDArray[np.float32]
_T = TypeVar("_T")

SIDE = 800
_TEXTS = 4096
_MARGIN = 0.06  # of a text's height, around its ink
_TRIES = 12
_NOISE = 1024
_DOCUMENTS = 0.45  # share of the pages


@dataclass(frozen=True)
class PageBank:
    """What pages are made of.

    Attributes:
        grounds: uint8 (N, side, side, 3).
        words, lines: texts to choose from.
        fonts: font files.
        noise: float32 (side, side, 3), normal: to draw it anew for each page took longer than all the rest.
    """

    grounds: Picture
    words: Sequence[str]
    lines: Sequence[str]
    fonts: Sequence[Path]
    noise: NDArray[np.float32]

    @classmethod
    def make(cls, seed: int = 0, fonts: Sequence[str | Path] = (CARRIED,), grounds: int = 256) -> PageBank:
        """Return a bank; without arguments from what the package carries."""
        pictures, _ = make_grounds(grounds, 256, seed)
        states = sample_states(seed, 0, np.arange(_TEXTS))
        words, lines = (
            [text for text in sampler.strings(sampler.sample(states)) if text.strip()]
            for sampler in (TextSampler(), TextSampler(lines=1.0))
        )
        noise = np.random.default_rng(seed).normal(0, 1, (_NOISE, _NOISE, 3)).astype(np.float32)
        return cls(pictures, words, lines, find_fonts(fonts), noise)


@dataclass
class _Canvas:
    """A page while it is drawn."""

    pixels: NDArray[np.float32]
    taken: NDArray[np.bool_]
    quads: list[Quad] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def draw_page(bank: PageBank, seed: int, index: int, side: int = SIDE) -> tuple[Picture, Polygons]:
    """Return page `index`: uint8 (side, side, 3) RGB, and its regions with their texts.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    rng = np.random.default_rng([seed, index])
    document = rng.random() < _DOCUMENTS
    # 1. A ground, and text on it.
    ground = _paper(rng, side) if document else _scenery(rng, bank, side)
    canvas = _Canvas(ground, np.zeros((side // 4, side // 4), np.bool_))
    (_write_document if document else _write_scene)(rng, bank, canvas)
    # 2. A document lies on something, not quite straight; its regions move along.
    if document:
        _lay_down(rng, bank, canvas)
    # 3. The camera: light, blur, noise, the file.
    return _photographed(rng, bank, canvas.pixels), _as_polygons(canvas, side)


def _as_polygons(canvas: _Canvas, side: int) -> Polygons:
    inside = [cv2.contourArea(quad) > 4 and (quad < side).all() and (quad > -1).all() for quad in canvas.quads]
    return Polygons(tuple(canvas.quads), tuple(not one for one in inside), tuple(canvas.texts))


def _one_of(rng: Generator, some: Sequence[_T]) -> _T:
    return some[int(rng.integers(len(some)))]


# Scenes


def _scenery(rng: Generator, bank: PageBank, side: int) -> NDArray[np.float32]:
    page = _cut(rng, bank, side, side)
    for _ in range(rng.integers(0, 5)):
        wide, high = rng.integers(side // 8, side, 2).tolist()
        x, y = int(rng.integers(-wide // 2, side)), int(rng.integers(-high // 2, side))
        panel = page[max(y, 0) : y + high, max(x, 0) : x + wide]
        if panel.size:
            other = _cut(rng, bank, panel.shape[1], panel.shape[0])
            panel += rng.uniform(0.3, 1) * (other - panel)
    return page


def _cut(rng: Generator, bank: PageBank, wide: int, high: int) -> NDArray[np.float32]:
    """Return a part of a ground, at a random scale."""
    ground = bank.grounds[rng.integers(len(bank.grounds))]
    share = rng.uniform(0.25, 1, 2)
    rows, columns = (max(8, int(len(ground) * one)) for one in share)
    y, x = rng.integers(0, len(ground) - rows + 1), rng.integers(0, len(ground) - columns + 1)
    part = cv2.resize(ground[y : y + rows, x : x + columns], (wide, high), interpolation=cv2.INTER_CUBIC)
    return np.asarray(part, np.float32)


def _write_scene(rng: Generator, bank: PageBank, canvas: _Canvas) -> None:
    side = len(canvas.pixels)
    many = int(rng.choice([3, 8, 16, 40], p=[0.2, 0.35, 0.3, 0.15]) * rng.uniform(0.6, 1.4)) + 1
    page_tilt = rng.normal(0, 5)
    for _ in range(many):
        words = [_one_of(rng, bank.words) for _ in range(rng.choice([1, 2, 3], p=[0.55, 0.3, 0.15]))]
        high = math.exp(rng.uniform(math.log(12), math.log(140 if many < 12 else 60)))
        high = min(high, 1.6 * side / max(8, sum(map(len, words))))
        if high < 9:
            continue
        face = _one_of(rng, bank.fonts)
        mask, boxes = _typeset(face, words, high, rng.uniform(0.25, 0.7))
        tilt = page_tilt + rng.normal(0, 4)
        if (chance := rng.random()) < 0.06:
            tilt = rng.uniform(-180, 180)
        elif chance < 0.1:
            tilt += 90 * rng.choice([-1, 1])
        matrix = _placed(rng, canvas, mask.shape, tilt, jitter=0.08)
        if matrix is not None:
            _paint(rng, canvas, mask, matrix, plain=False)
            canvas.quads += [_moved(box, matrix) for box in boxes]
            canvas.texts += words


# Documents


def _paper(rng: Generator, side: int) -> NDArray[np.float32]:
    shade, tint = rng.uniform(175, 255), rng.normal(0, 4, 3)
    page = np.full((side, side, 3), shade, np.float32) + tint.astype(np.float32)
    coarse = rng.normal(0, rng.uniform(0, 8), (8, 8)).astype(np.float32)
    page += cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)[:, :, None]
    return page


def _write_document(rng: Generator, bank: PageBank, canvas: _Canvas) -> None:
    side = len(canvas.pixels)
    faces = [_one_of(rng, bank.fonts) for _ in range(2)]
    high = rng.uniform(13, 34)
    step, left = high * rng.uniform(1.05, 1.9), int(rng.uniform(0.02, 0.15) * side)
    right = side - int(rng.uniform(0.02, 0.3) * side)
    columns = int(rng.choice([1, 2, 3], p=[0.45, 0.35, 0.2]))
    edges = np.linspace(left, right, columns + 1) + np.append(0, rng.normal(0, 20, columns))
    y = float(rng.uniform(5, 80))
    while y < side - 2 * high:
        size = high * (rng.uniform(1.3, 2.2) if rng.random() < 0.08 else 1)
        if rng.random() < 0.06:  # a rule
            cv2.line(canvas.pixels, (left, int(y)), (right, int(y)), (60.0,) * 3, int(rng.integers(1, 3)))
        for column in range(columns):
            if rng.random() < 0.15 + 0.1 * columns:
                continue
            room = edges[column + 1] - edges[column] - 1.2 * size
            texts = bank.lines if columns == 1 or rng.random() < 0.3 else bank.words
            text = _one_of(rng, texts)[: max(2, int(room / (0.55 * size)))].strip()
            if room < 2 * size or not text:
                continue
            mask, boxes = _typeset(faces[int(size > high)], [text], size, 0.3)
            spare = max(0.0, room - mask.shape[1])
            x = edges[column] + spare * rng.choice([0.0, 0.5, 1.0], p=[0.6, 0.1, 0.3])
            if x + mask.shape[1] > side:
                continue
            matrix = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])
            _paint(rng, canvas, mask, matrix, plain=True)
            canvas.quads += [_moved(box, matrix) for box in boxes]
            canvas.texts.append(text)
        y += step * (size / high) * (rng.uniform(1.5, 3) if rng.random() < 0.08 else 1)


def _lay_down(rng: Generator, bank: PageBank, canvas: _Canvas) -> None:
    """Turn, shrink and tilt a document on another ground."""
    side = len(canvas.pixels)
    corners = np.array([[0, 0], [side, 0], [side, side], [0, side]], np.float32)
    turn, scale = math.radians(rng.normal(0, 3)), rng.uniform(0.85, 1.08)
    around = (corners - side / 2) @ np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    goal = around * scale + side / 2 + rng.normal(0, 0.015 * side, (4, 2))
    matrix = cv2.getPerspectiveTransform(corners, goal.astype(np.float32))
    below = _cut(rng, bank, side, side) if rng.random() < 0.6 else np.full_like(canvas.pixels, rng.uniform(0, 255))
    size = (side, side)
    shown = cv2.warpPerspective(np.ones(size, np.float32), matrix, size, flags=cv2.INTER_LINEAR)[:, :, None]
    moved = cv2.warpPerspective(canvas.pixels, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    canvas.pixels = below + shown * (moved - below)
    canvas.quads = [_moved(quad, matrix) for quad in canvas.quads]


# Text


@lru_cache(maxsize=512)
def _font(path: Path, size: int) -> Any:
    try:
        from PIL import ImageFont
    except ImportError as error:
        raise MissingExtraError("pillow", "train", "drawing pages") from error
    return ImageFont.truetype(str(path), size)


def _typeset(face: Path, words: Sequence[str], high: float, gap: float) -> tuple[NDArray[np.float32], list[Quad]]:
    """Return the coverage of words in a row, float32 (h, w) of 0..1, and the box around the ink of each."""
    from PIL import Image, ImageDraw

    font = _font(face, max(8, round(high)))
    x, y, places = 0.0, 4 + high * 0.2, []
    for word in words:
        left, top, right, bottom = font.getbbox(word)
        places.append((x - left + 4, word, x + 4, y + top, x + 4 + right - left, y + bottom))
        x += right - left + gap * high
    image = Image.new("L", (math.ceil(places[-1][4]) + 5, math.ceil(max(one[5] for one in places)) + 6))
    draw = ImageDraw.Draw(image)
    boxes = []
    for at, word, left, top, right, bottom in places:
        draw.text((at, y), word, 255, font=font)
        margin = _MARGIN * (bottom - top)
        low_x, low_y, high_x, high_y = left - margin, top - margin, right + margin - 1, bottom + margin - 1
        boxes.append(np.array([[low_x, low_y], [high_x, low_y], [high_x, high_y], [low_x, high_y]], np.float32))
    return np.asarray(image, np.float32) / np.float32(255), boxes


def _placed(
    rng: Generator, canvas: _Canvas, size: tuple[int, int], tilt: float, jitter: float
) -> NDArray[np.float64] | None:
    """Return a matrix to a free place of the page, or None where none was found; the place is taken from then on."""
    side, (high, wide) = len(canvas.pixels), size
    corners = np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float32)
    turn = math.radians(tilt)
    around = (corners - corners.mean(axis=0)) @ np.array(
        [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]
    )
    around = around + rng.normal(0, jitter * min(high, wide), (4, 2))
    for _ in range(_TRIES):
        goal = around + rng.uniform(0.03 * side, 0.97 * side, 2)
        if goal.min() < -0.1 * side or goal.max() > 1.1 * side:
            continue
        mask = np.zeros(canvas.taken.shape, np.uint8)
        cv2.fillConvexPoly(mask, np.round(goal / 4).astype(np.int32), 1)
        if not (canvas.taken & mask.astype(np.bool_)).any():
            canvas.taken |= cv2.dilate(mask, np.ones((3, 3), np.uint8)).astype(np.bool_)
            return np.asarray(cv2.getPerspectiveTransform(corners, goal.astype(np.float32)))
    return None


def _paint(
    rng: Generator, canvas: _Canvas, mask: NDArray[np.float32], matrix: NDArray[np.float64], plain: bool
) -> None:
    """Lay a text onto the page: perhaps a plate, a shadow or an outline, then the ink."""
    side, (high, wide) = len(canvas.pixels), mask.shape
    corners = _moved(np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float32), matrix)
    low = np.clip(np.floor(corners.min(axis=0)).astype(int) - 3, 0, side)
    top = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 3, 0, side)
    if (top <= low).any():
        return
    part = canvas.pixels[low[1] : top[1], low[0] : top[0]]
    local = np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1]]) @ matrix
    size = (part.shape[1], part.shape[0])
    ink = cv2.warpPerspective(mask, local, size, flags=cv2.INTER_AREA)
    if not plain and rng.random() < 0.2:
        plate = cv2.warpPerspective(np.ones_like(mask), local, size, flags=cv2.INTER_LINEAR)[:, :, None]
        part += plate * rng.uniform(0.5, 1) * (rng.uniform(0, 255, 3).astype(np.float32) - part)
    below = part.reshape(-1, 3).mean(axis=0)
    colour = rng.uniform(0, 90) + rng.normal(0, 8, 3) if plain else _colour(rng, below)
    if not plain and rng.random() < 0.25:
        thick = max(1, int(high * rng.uniform(0.02, 0.06)))
        rim = cv2.dilate(ink, np.ones((2 * thick + 1, 2 * thick + 1), np.uint8))
        if rng.random() < 0.5:  # a shadow
            shift = np.array([[1, 0, rng.normal(0, 2 * thick)], [0, 1, rng.normal(0, 2 * thick)]], np.float32)
            rim = cv2.warpAffine(ink, shift, size)
        part += (rim * rng.uniform(0.5, 1))[:, :, None] * (_colour(rng, colour) - part)
    part += (ink * rng.uniform(0.7, 1))[:, :, None] * (np.asarray(colour, np.float32) - part)


def _colour(rng: Generator, below: NDArray[Any]) -> NDArray[np.float32]:
    """Return a colour that differs from what is below."""
    least = 25 if rng.random() < 0.15 else 60
    for _ in range(20):
        colour = rng.uniform(0, 255, 3) if rng.random() < 0.7 else np.full(3, rng.choice([rng.uniform(0, 40), 250]))
        if abs(float(colour.mean() - below.mean())) >= least:
            break
    return colour.astype(np.float32)


def _moved(points: Quad, matrix: NDArray[Any]) -> Quad:
    homogeneous = points @ matrix[:, :2].T + matrix[:, 2]
    return np.asarray(homogeneous[:, :2] / homogeneous[:, 2:], np.float32)


# The camera


def _photographed(rng: Generator, bank: PageBank, pixels: NDArray[np.float32]) -> Picture:
    high, wide = pixels.shape[:2]
    if rng.random() < 0.5:  # uneven light
        light = rng.uniform(0.55, 1.25, (3, 3)).astype(np.float32)
        pixels = pixels * cv2.resize(light, (wide, high), interpolation=cv2.INTER_CUBIC)[:, :, None]
    if rng.random() < 0.4:
        pixels = np.asarray(cv2.GaussianBlur(pixels, (0, 0), rng.uniform(0.4, 1.6)), np.float32)
    if rng.random() < 0.5:
        rows, columns = (np.arange(n) + rng.integers(_NOISE) for n in (high, wide))
        noise = bank.noise.take(rows, axis=0, mode="wrap").take(columns, axis=1, mode="wrap")
        pixels = pixels + np.float32(rng.uniform(2, 14)) * noise
    if rng.random() < 0.3:
        pixels = np.repeat(pixels.mean(axis=2, keepdims=True), 3, axis=2)
    picture = np.clip(pixels, 0, 255).astype(np.uint8)
    if rng.random() < 0.5:
        _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(25, 92))])
        picture = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)
    return picture
