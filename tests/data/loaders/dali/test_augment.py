"""DALI shows what OpenCV shows, for the same numbers, on real captchas. The tolerances are those of docs/dali.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inkmill.data.augment import Augmentation, apply_cv
from inkmill.data.augment.ops import Jpeg, load_preset, parse_ops, preset_names
from inkmill.data.augment.params import AugmentParams
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize

pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.dali

HEIGHT, WIDTH = 32, 128

# op -> its values, and how far from OpenCV any pixel of the CPU's result may lie, of 255
OPS = [
    ({"op": "shrink", "p": 0.7}, 0),
    ({"op": "motion_blur", "p": 0.5, "length": [1, 9]}, 1),
    ({"op": "illumination", "p": 0.5}, 1),
    ({"op": "rotate", "degrees": [-15, 15]}, 0),
    ({"op": "shear", "p": 0.7, "degrees_x": [-20, 20]}, 0),
    ({"op": "scale", "p": 0.7, "factor": [0.7, 1.3]}, 0),
    ({"op": "shift", "p": 0.7}, 0),
    ({"op": "perspective", "p": 0.7}, 0),
    ({"op": "flip", "p": 0.5}, 0),
    ({"op": "curve", "p": 0.5}, 1),
    ({"op": "elastic", "p": 0.5}, 1),
    ({"op": "brightness", "p": 0.7, "factor": [0.5, 1.5]}, 1),
    ({"op": "contrast", "p": 0.7, "factor": [0.5, 1.5]}, 1),
    ({"op": "saturation", "p": 0.7, "factor": [0.2, 1.8]}, 1),
    ({"op": "hue", "p": 0.7, "degrees": [-90, 90]}, 1),
    ({"op": "gray", "p": 0.5}, 1),
    ({"op": "invert", "p": 0.5}, 0),
    ({"op": "blur", "p": 0.5, "sigma": [0.3, 4]}, 1),
    ({"op": "noise", "p": 0.5, "std": [2, 25]}, 1),
    ({"op": "jpeg", "p": 0.5, "quality": [20, 95]}, 1),
    ({"op": "cutout", "p": 0.6, "count": 3}, 0),
]


@pytest.fixture(scope="module")
def pictures(captchas: Path) -> dict[int, np.ndarray]:
    files = sorted((captchas / "images").iterdir())[:24]
    return {
        channels: np.stack([Resize(HEIGHT, WIDTH, channels).apply(decode(f.read_bytes(), channels))[0] for f in files])
        for channels in (1, 3)
    }


def drawn(changes: list, count: int) -> AugmentParams:
    return Augmentation(changes).sample(3, 5, np.arange(count), HEIGHT, WIDTH)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("op", "tolerance"), OPS, ids=[op["op"] for op, _ in OPS])
def test_an_op_shows_what_opencv_shows(pictures, apply_dali, channels, op, tolerance):
    images = pictures[channels]
    table = drawn(parse_ops([op]), len(images))
    expected = apply_cv(images, table)
    difference = np.abs(apply_dali(images, table).astype(int) - expected)
    assert difference.max() <= tolerance
    assert (expected != images).any() or (channels == 1 and op["op"] in ("saturation", "hue", "gray"))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_shows_what_opencv_shows(pictures, apply_dali, channels, preset):
    images, changes = pictures[channels], load_preset(preset)

    def difference(some):
        table = drawn(some, len(images))
        return np.abs(apply_dali(images, table).astype(int) - apply_cv(images, table))

    assert difference(changes).mean() < 0.2
    # A step of 1 before a JPEG may move one of its coefficients by a whole quantum, so the largest is bound without it.
    assert difference([change for change in changes if not isinstance(change, Jpeg)]).max() <= 4


def test_images_are_left_as_they_are(pictures, apply_dali):
    images = pictures[3].copy()
    apply_dali(images, drawn(parse_ops([{"op": "invert"}]), len(images)))
    assert (images == pictures[3]).all()
