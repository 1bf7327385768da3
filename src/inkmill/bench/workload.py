"""What every benchmark case loads: rendered JPEG word crops, the size they end at, and the strong augmentation.

The cost of decoding depends on the size of image and file, so the crops follow real word crops: 20 to 64 pixels high,
as wide as their word, colour, JPEG quality 90, about 2.7 kB on average. They are the same bytes on every machine with
the same OpenCV.
"""

from __future__ import annotations

import math
import string
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import ops
from inkmill.data.pipeline.resize import Resize

RESIZE = Resize(32, 128, 3)
"""The size that every case brings images to."""
DISTINCT = 4096
"""Distinct images; larger sets repeat their bytes under other keys, which costs a loader just as much."""

_FONTS = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
    cv2.FONT_HERSHEY_SCRIPT_COMPLEX,
)
_LETTERS = np.array(list(string.ascii_letters + string.digits))
_JPEG = (cv2.IMWRITE_JPEG_QUALITY, 90)

# Left out for everyone: torchvision's ElasticTransform alone would make its row several times slower, which would
# flatter the rest of the table.
_LEFT_OUT = (ops.Curve, ops.Elastic)


def write_crops(folder: Path, count: int, seed: int = 1) -> Path:
    """Write `count` crops as an OCR LMDB (image-%09d, label-%09d, num-samples) and return its folder.

    Raises:
        MissingExtraError: lmdb is not installed.
        OutputError: the folder cannot be written.
    """
    from inkmill.data.sources.lmdb import LmdbWriter

    crops = [render_crop(seed, index) for index in range(min(count, DISTINCT))]
    with LmdbWriter(folder) as writer:
        for index in range(count):
            writer.add(*crops[index % DISTINCT])
        writer.finish()
    return folder


def render_crop(seed: int, index: int) -> tuple[bytes, str]:
    """Render one word crop, a pure function of its arguments.

    Returns:
        The bytes of a colour JPEG, and the word in it.
    """
    rng = np.random.default_rng((seed, index))
    word = "".join(rng.choice(_LETTERS, int(rng.integers(2, 13))))
    height = int(rng.integers(20, 65))
    image = _write_word(_background(rng, word, height), word, rng)
    # Without grain JPEG would shrink the file to a third of a real crop's.
    grainy = cv2.add(image, rng.integers(0, 8, image.shape, np.uint8))
    return cv2.imencode(".jpg", grainy, _JPEG)[1].tobytes(), word


def _background(rng: np.random.Generator, word: str, height: int) -> NDArray[np.uint8]:
    """Return shaded paper, BGR, as wide as the word needs."""
    width = max(16, int(height * (0.42 * len(word) + 0.5) * rng.uniform(0.8, 1.2)))
    corners = rng.integers(110, 245, (2, 2, 3), np.uint8)
    return np.asarray(cv2.resize(corners, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)


def _write_word(image: NDArray[np.uint8], word: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    font = int(rng.choice(_FONTS))
    thickness = 2 if height > 36 else 1
    (text_width, text_height), _ = cv2.getTextSize(word, font, 1.0, thickness)
    scale = min(0.92 * width / text_width, 0.6 * height / text_height)
    start = (int(0.04 * width), int(0.72 * height))
    ink = rng.integers(0, 90, 3).tolist()
    return np.asarray(cv2.putText(image, word, start, font, scale, ink, thickness, cv2.LINE_AA), np.uint8)


def strong_ops() -> list[ops.Op]:
    """Return the strong augmentation, in order: the preset `scene_text` without its two local warps."""
    return [op for op in ops.load_preset("scene_text") if not isinstance(op, _LEFT_OUT)]


def strong_spec() -> AugmentationSpec:
    """Return the same list as inkmill's loaders take it."""
    return AugmentationSpec(ops=[{"op": name, **op.model_dump()} for name, op in _by_name().items()])


def strong_ranges() -> SimpleNamespace:
    """Return the same list for the operators of other libraries: each op by its name, and what they derive from it.

    Where a library has one operator for several ops (an affine map for rotate, shear, scale and shift), it is used
    once, with the probability `affine_p` that any of them happens: less work than a chain of single operators.
    """
    s = SimpleNamespace(**_by_name())
    s.affine_p = 1 - math.prod(1 - op.p for op in (s.rotate, s.shear, s.scale, s.shift))
    s.corner_shift = max(*s.perspective.x, *s.perspective.y) / 4  # of a corner, as a share of the image's side
    s.blur_side = 2 * math.ceil(3 * s.blur.largest) + 1  # of the kernel in pixels, cut at three sigma
    s.hue_share = tuple(degrees / 360 for degrees in s.hue.degrees)
    s.noise_share = tuple(std / 255 for std in s.noise.std)
    return s


def _by_name() -> dict[str, ops.Op]:
    names = {ops.OPS.get(name): name for name in ops.OPS.names()}
    return {names[type(op)]: op for op in strong_ops()}
