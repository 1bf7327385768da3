"""The glyph atlas: for each letter of each font a small picture of signed distances to its outline.

A pixel of the atlas holds how far it is from the letter's edge, positive inside. From that one value a composer gets
the letter in any size, and its bold, outlined, hollow, glowing and shadowed forms, by thresholds alone (Green 2007,
Improved Alpha-Tested Magnification for Vector Textures). Vietnamese needs no shaping: in NFC every letter with its
marks is one code point, and every font that has it draws it as one glyph.

Drawing a font takes about a third of a second, so each is kept on disk under the hash of its file.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.cache import default_cache_dir
from inkmill.errors import DataError, MissingExtraError, OutputError
from inkmill.files import explain, read_data, write_bytes_atomic
from inkmill.processes import local_executor
from inkmill.synth.fonts import MAX_FILE_BYTES, Face, FontReport, read_faces
from inkmill.synth.params import EM_PIXELS, SPREAD_PIXELS, STEPS_PER_PIXEL, GlyphTable

_OVERSAMPLING = 4  # glyphs are drawn so many times larger than they are kept
_VERSION = 2  # of what is kept on disk
_PAD = SPREAD_PIXELS + 1
MAX_SIDE = 4 * EM_PIXELS
"""Largest width or height of a letter in the atlas, four em; a font may claim to draw letters the size of a house."""
MAX_ATLAS_BYTES = 2**31 - 1
"""Offsets into the atlas are int32."""
CACHE_BYTES = 2 << 30
"""Glyphs of fonts that were not used for longest leave the disk beyond this size."""

# Small letters that differ from their capitals, and how a font shows that it has them: b is higher than a.
_TELLING = "abdeghnqrt"
_LOW, _HIGH = "ae", "bdhl"
_SAME_HEIGHT = 0.08  # of a capital: so much higher at most are b, d, h and l where all small letters are capitals
_ALIKE = 0.7  # correlation of blurred shapes, scaled to each other, from which on they are the same letter
_PLACEHOLDER = 0.9  # the same between different letters: nobody could read that


_SIGN_STROKE = 0.07  # half the width of a bold font's strokes, em


@dataclass(frozen=True, eq=False)
class FontGlyphs:
    """The glyphs of one face.

    Attributes:
        name: family and style.
        covered: bool (C,), which characters it can write; a space is, without a glyph.
        advances: float32 (C,), em from a letter's pen to the next one's.
        ink: float32 (C, 4), left, top, right and bottom of the outline from the pen, em, y down; 0 without one.
        boxes: int32 (C, 5), see `params.GlyphTable`; width 0 without a glyph.
        distances: uint8 (N,), see `params.GlyphTable`.
        caps_only: its small letters are capitals.
        problem: why it should not be used; empty if it should.
    """

    name: str
    covered: NDArray[np.bool_]
    advances: NDArray[np.float32]
    ink: NDArray[np.float32]
    boxes: NDArray[np.int32]
    distances: NDArray[np.uint8]
    caps_only: bool
    problem: str


@dataclass(frozen=True, eq=False)
class FontTable:
    """What layout reads of the fonts; arrays of NumPy, or tensors of torch.

    Attributes:
        glyphs: int32 (F, C), each character's glyph in the atlas, -1 for the space and what is not covered.
        covered: bool (F, C).
        advances: float32 (F, C), em.
        ink: float32 (F, C, 4), left, top, right and bottom of the outline from the pen, em, y down.
        caps_only: bool (F,).
        chances: float64 (F,), rising to 1: a font is drawn where a random number falls between it and the one before.
        upper: int16 (C,), the capital of each character, or itself.
    """

    glyphs: NDArray[np.int32]
    covered: NDArray[np.bool_]
    advances: NDArray[np.float32]
    ink: NDArray[np.float32]
    caps_only: NDArray[np.bool_]
    chances: NDArray[np.float64]
    upper: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.glyphs)


@dataclass(frozen=True, eq=False)
class Atlas:
    """The glyphs of all fonts.

    Attributes:
        characters: the character set; a code is a position in it.
        names: of the fonts, family and style.
        glyphs: what a composer reads.
        fonts: what layout reads.
        reports: on every face and file, those left out among them.
    """

    characters: str
    names: list[str]
    glyphs: GlyphTable
    fonts: FontTable
    reports: list[FontReport]


def build_atlas(files: Sequence[Path], characters: str, cache: Path | None = None, workers: int | None = None) -> Atlas:
    """Draw the glyphs of some fonts, or fetch them from the cache.

    Args:
        files: font files.
        characters: what is to be written.
        cache: where glyphs are kept; `~/.cache/inkmill/glyphs` by default.
        workers: processes that draw; by default one for each core, none for a few fonts.

    Raises:
        DataError: no font can be used, a character is in none of them, or they are too many for one atlas.
        MissingExtraError: Pillow or fontTools is not installed.
    """
    cache = cache or default_cache_dir() / "glyphs"
    if workers is None:
        workers = (os.cpu_count() or 1) if len(files) > 16 else 0
    fonts: list[FontGlyphs] = []
    reports: list[FontReport] = []
    work = local_executor(workers).map(glyphs_of_file, (characters, cache), files)
    for file, faces in zip(files, work, strict=True):
        if isinstance(faces, str):
            reports.append(FontReport(file.name, "", "", False, faces))
            continue
        for face in faces:
            missing = "".join(characters[code] for code in np.flatnonzero(~face.covered))
            reports.append(FontReport(file.name, face.name, missing, face.caps_only, face.problem))
            if not face.problem:
                fonts.append(face)
    trim_cache(cache)
    return _assembled(fonts, reports, characters)


def _assembled(fonts: list[FontGlyphs], reports: list[FontReport], characters: str) -> Atlas:
    if not fonts:
        reason = next((report.problem for report in reports if report.problem), "")
        raise DataError(f"none of {len(reports)} fonts can be used, the first because: {reason}")
    covered = np.stack([font.covered for font in fonts])
    nowhere = "".join(characters[code] for code in np.flatnonzero(~covered.any(axis=0)))
    if nowhere:
        raise DataError(f"no font has the characters {nowhere!r}: add one that has, or leave them out of the charset")
    sizes = [len(font.distances) for font in fonts]
    if sum(sizes) > MAX_ATLAS_BYTES:
        raise DataError(f"{len(fonts)} fonts make an atlas of {sum(sizes) >> 20:,} MiB, 2,047 is the limit: use fewer")
    # 1. Boxes of all fonts, their offsets moved on to where each font's glyphs begin.
    starts = np.cumsum([0, *sizes[:-1]]).astype(np.int32)
    boxes = np.stack([font.boxes for font in fonts])
    boxes[:, :, 0] += starts[:, None]
    # 2. Glyphs are numbered one after the other; a character without one has -1.
    drawn = boxes[:, :, 3] > 0
    numbers = np.where(drawn, np.cumsum(drawn.ravel()).reshape(drawn.shape) - 1, -1).astype(np.int32)
    table = FontTable(
        numbers,
        covered,
        np.stack([font.advances for font in fonts]),
        np.stack([font.ink for font in fonts]),
        np.array([font.caps_only for font in fonts]),
        _chances(fonts),
        capitals_of(characters),
    )
    distances = np.concatenate([font.distances for font in fonts])
    return Atlas(characters, [font.name for font in fonts], GlyphTable(distances, boxes[drawn]), table, reports)


def _chances(fonts: list[FontGlyphs]) -> NDArray[np.float64]:
    """Return the fonts' cumulative chances: what people write on signs is bold more often than fine."""
    weights = []
    for font in fonts:
        boxes = [box for box in font.boxes if box[3]]
        widest = [font.distances[box[0] : box[0] + box[3] * box[4]].max() for box in boxes]
        half_stroke = (float(np.median(widest)) - 128) / STEPS_PER_PIXEL / EM_PIXELS
        weights.append(np.clip((half_stroke / _SIGN_STROKE) ** 1.5, 0.15, 1))
    chances: NDArray[np.float64] = np.cumsum(weights) / np.sum(weights)
    chances[-1] = 1
    return chances


def capitals_of(characters: str) -> NDArray[np.int16]:
    """Return for each character the position of its capital, or its own where the set has none: int16 (C,)."""
    place = {character: number for number, character in enumerate(characters)}
    return np.array([place.get(mark.upper(), number) for number, mark in enumerate(characters)], np.int16)


def glyphs_of_file(shared: tuple[str, Path], file: Path) -> list[FontGlyphs] | str:
    """Return the glyphs of all faces of a file, or why it cannot be used; (characters, cache folder) are `shared`."""
    characters, cache = shared
    try:
        data = read_data(file, MAX_FILE_BYTES)
        key = hashlib.sha256(data)
        key.update(f"{_VERSION} {EM_PIXELS} {SPREAD_PIXELS} {characters}".encode())
        kept = cache / f"{key.hexdigest()[:32]}.npz"
        faces = _load(kept)
        if faces is None:
            faces = [draw_face(data, face, characters) for face in read_faces(data)]
            _keep(kept, faces)
        return faces
    except OSError as error:
        return explain(error)
    except DataError as error:
        return str(error)


def draw_face(data: bytes, face: Face, characters: str) -> FontGlyphs:
    """Draw the glyphs of one face.

    Raises:
        DataError: FreeType cannot open it.
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import ImageFont
    except ImportError:
        raise MissingExtraError("pillow", "train", "drawing glyphs") from None
    try:
        size = EM_PIXELS * _OVERSAMPLING
        layout = ImageFont.Layout.BASIC
        font = ImageFont.truetype(io.BytesIO(data), size, index=face.number, layout_engine=layout)
    except (OSError, ValueError) as error:
        raise DataError(f"FreeType cannot open it: {error}") from error
    count = len(characters)
    covered = np.zeros(count, np.bool_)
    advances, ink = np.zeros(count, np.float32), np.zeros((count, 4), np.float32)
    boxes, parts, shapes, end = np.zeros((count, 5), np.int32), [], {}, 0
    for code, character in enumerate(characters):
        if ord(character) not in face.code_points:
            continue
        try:
            mask = _mask(font, character)
            advances[code] = font.getlength(character) / size
        except (OSError, ValueError):  # an outline that FreeType cannot draw
            continue
        if mask is None:  # nothing to see: right for a space, wrong for all else
            covered[code] = character.isspace() and 0 < advances[code] < 2
            continue
        shape, left, top = mask
        if not -1 < advances[code] < MAX_SIDE / EM_PIXELS:
            continue
        distances, *place = signed_distances(shape, left, top)
        down, across = distances.shape
        covered[code] = True
        ink[code] = np.array([left, top, left + shape.shape[1], top + shape.shape[0]]) / size
        boxes[code] = [end, *place, across, down]
        parts.append(distances.ravel())
        shapes[character] = shape, top
        end += distances.size
    # Marks are drawn, but as those of another letter: such a font would teach wrong labels.
    for character in _drawn_as_another(shapes):
        code = characters.index(character)
        covered[code] = False
    caps_only, problem = _judged(shapes)
    distances = np.concatenate(parts) if parts else np.empty(0, np.uint8)
    return FontGlyphs(face.name, covered, advances, ink, boxes, distances, caps_only, problem)


def _mask(font: Any, character: str) -> tuple[NDArray[np.bool_], int, int] | None:
    """Return a letter's shape, cut to its ink, and its left and top from the pen in drawn pixels.

    None if it is empty, or larger than MAX_SIDE.
    """
    box = font.getbbox(character, anchor="ls")
    if not 0 < max(box[2] - box[0], box[3] - box[1]) <= MAX_SIDE * _OVERSAMPLING:
        return None
    mask, (left, top) = font.getmask2(character, "L", anchor="ls")
    width, height = mask.size
    shape = np.frombuffer(bytes(mask), np.uint8).reshape(height, width) >= 128
    rows, columns = np.flatnonzero(shape.any(axis=1)), np.flatnonzero(shape.any(axis=0))
    if not len(rows):
        return None
    shape = shape[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return shape, int(left + columns[0]), int(top + rows[0])


def signed_distances(shape: NDArray[np.bool_], left: int, top: int) -> tuple[NDArray[np.uint8], int, int]:
    """Return a letter's signed distances at the atlas's size, and its box's left and top from the pen in its pixels.

    Args:
        shape: bool (h, w), the letter, drawn `_OVERSAMPLING` times larger.
        left, top: of the shape from the pen, in drawn pixels.
    """
    step = _OVERSAMPLING
    # 1. A frame so wide that its edge is further out than distances reach, and on whole pixels of the atlas.
    first_x, first_y = (int(np.floor(place / step)) - _PAD for place in (left, top))
    last_x = int(np.ceil((left + shape.shape[1]) / step)) + _PAD
    last_y = int(np.ceil((top + shape.shape[0]) / step)) + _PAD
    # One drawn pixel more on each side: an atlas pixel's centre lies between four drawn ones.
    frame = np.zeros(((last_y - first_y) * step + 2, (last_x - first_x) * step + 2), np.uint8)
    y, x = top - first_y * step + 1, left - first_x * step + 1
    frame[y : y + shape.shape[0], x : x + shape.shape[1]] = shape
    # 2. Distances from pixel centres to pixel centres on the other side; the edge is half a pixel nearer.
    inside = cv2.distanceTransform(frame, cv2.DIST_L2, cv2.DIST_MASK_5)
    outside = cv2.distanceTransform(1 - frame, cv2.DIST_L2, cv2.DIST_MASK_5)
    signed = np.where(frame > 0, inside - 0.5, 0.5 - outside)
    # 3. The mean of the four around each atlas pixel's place.
    down, across = ((last - first) * step for last, first in ((last_y, first_y), (last_x, first_x)))
    four = [signed[a : a + down : step, b : b + across : step] for a in (0, 1) for b in (0, 1)]
    pixels = np.mean(four, axis=0) / step
    stored = np.clip(np.rint(128 + pixels * STEPS_PER_PIXEL), 1, 255).astype(np.uint8)
    return stored, first_x, first_y


def _drawn_as_another(shapes: dict[str, tuple[NDArray[np.bool_], int]]) -> list[str]:
    """Return the characters beyond ASCII that are drawn as another one is: marks left out, or one for another."""
    seen: dict[tuple[bytes, tuple[int, ...], int], str] = {}
    wrong = []
    for character, (shape, top) in shapes.items():
        key = np.packbits(shape).tobytes(), shape.shape, top
        first = seen.setdefault(key, character)
        if first != character and not character.isascii() and first.upper() != character.upper():
            wrong.append(character)
    return wrong


def _judged(shapes: dict[str, tuple[NDArray[np.bool_], int]]) -> tuple[bool, str]:
    """Return whether a font writes capitals for small letters, and why it should not be used, if so."""
    if not shapes:
        return False, "it has none of the characters"
    capitals = [shapes[letter][0] for letter in ascii_uppercase if letter in shapes]
    if len(capitals) > 2 and _likeness(capitals[:-1], capitals[1:]) > _PLACEHOLDER:
        return False, "its letters look alike: it is a font of placeholders"
    if not {*_TELLING, *_TELLING.upper(), *_LOW, *_HIGH} <= shapes.keys():
        return False, ""
    tall, low = (np.mean([-shapes[letter][1] for letter in letters]) for letters in (_HIGH, _LOW))
    if tall - low > _SAME_HEIGHT * len(shapes["H"][0]):
        return False, ""
    alike = _likeness(*([shapes[letter][0] for letter in letters] for letters in (_TELLING, _TELLING.upper())))
    if alike > _ALIKE:
        return True, ""
    return False, "some of its small letters are capitals and some are not, so its labels would be wrong"


def _likeness(some: list[NDArray[np.bool_]], others: list[NDArray[np.bool_]]) -> float:
    """Return the mean correlation of shapes, each scaled to the same size and blurred."""
    values = []
    for pair in zip(some, others, strict=True):
        scaled = [cv2.resize(shape.astype(np.float32), (24, 24), interpolation=cv2.INTER_AREA) for shape in pair]
        blurred = [cv2.GaussianBlur(shape, (0, 0), 2, borderType=cv2.BORDER_CONSTANT).ravel() for shape in scaled]
        one, other = (shape - shape.mean() for shape in blurred)
        values.append((one @ other + 1e-6) / (np.sqrt((one @ one) * (other @ other)) + 1e-6))  # blank ones are alike
    return float(np.mean(values))


_ARRAYS = ("covered", "advances", "ink", "boxes", "distances")


def _keep(path: Path, faces: list[FontGlyphs]) -> None:
    """Keep the glyphs of a file; where that cannot be written they are drawn again the next time."""
    arrays = {f"{name}{number}": getattr(face, name) for number, face in enumerate(faces) for name in _ARRAYS}
    words = np.array([[face.name, face.problem, str(face.caps_only)] for face in faces], np.str_).reshape(-1, 3)
    buffer = io.BytesIO()
    np.savez(buffer, words=words, **arrays)
    try:
        write_bytes_atomic(path, buffer.getvalue())
    except OutputError:
        return


def _load(path: Path) -> list[FontGlyphs] | None:
    """Return the kept glyphs of a file, or None where there are none or they are damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            faces = [
                FontGlyphs(
                    name=name,
                    **{part: kept[f"{part}{number}"] for part in _ARRAYS},
                    caps_only=caps == "True",
                    problem=problem,
                )
                for number, (name, problem, caps) in enumerate(kept["words"].tolist())
            ]
        os.utime(path)
        return faces
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def trim_cache(folder: Path, limit: int = CACHE_BYTES) -> int:
    """Remove the kept fonts that were not used for longest until at most `limit` bytes are left; return how many."""
    kept = sorted((status.st_mtime, status.st_size, path) for path in folder.glob("*.npz") for status in [path.stat()])
    excess, removed = sum(size for _, size, _ in kept) - limit, 0
    for _, size, path in kept:
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess, removed = excess - size, removed + 1
    return removed
