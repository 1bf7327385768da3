"""The composer's kernel against the reference, `inkmill.synth.compose`, on rows that use everything a row can say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inkmill.synth.compose import compose, ground_cells
from inkmill.synth.params import EM_PIXELS, MAX_CHARACTERS, SLICES, STEPS_PER_PIXEL, WIDTH, GlyphTable, SynthParams

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_compose import largest_differences
print(*largest_differences("cpu"))
"""
COUNT, GLYPHS, SIDE = 10, 5, 16
STEPS_PER_EM = EM_PIXELS * STEPS_PER_PIXEL


def atlas(rng):
    """Return discs and boxes of several sizes."""
    distances, boxes, offset = [], [], 0
    for number in range(4):
        width, height = int(rng.integers(24, 44)), int(rng.integers(24, 52))
        y, x = np.mgrid[:height, :width].astype(np.float32)
        disc = min(width, height) / 2 - 8 - np.hypot(x - width / 2, y - height / 2)
        box = np.minimum(np.minimum(x - 8, width - 9 - x), np.minimum(y - 8, height - 9 - y))
        distance = box if number % 2 else disc
        distances.append(np.clip(np.rint(128 + distance * STEPS_PER_PIXEL), 0, 255).astype(np.uint8).ravel())
        boxes.append((offset, -8, 8 - height, width, height))
        offset += width * height
    return GlyphTable(np.concatenate(distances), np.array(boxes, np.int32))


def table(rng):
    """Return rows in which each part that may be absent is so in about half."""
    values = np.zeros((COUNT, WIDTH), np.float32)

    def some(low, high, *shape):
        return rng.uniform(low, high, (COUNT, *shape))

    def often(share):
        return rng.random(COUNT) < share

    letters = rng.integers(2, GLYPHS + 1, COUNT)
    matrix = np.zeros((COUNT, 3, 3))
    matrix[:, 0, 0], matrix[:, 0, 2] = letters * 0.7 + 0.6, -0.3
    matrix[:, 1, 1], matrix[:, 1, 2], matrix[:, 2, 2] = 1.5, -1.1, 1
    wave = some(0, 0.1, 3) * often(0.5)[:, None]
    wave[:, 1] = 2
    curvature = some(0.02, 0.6) * rng.choice([-1, 0, 1], COUNT)
    flat = letters * 0
    columns = {
        "matrix": matrix + rng.normal(0, 0.05, matrix.shape),
        "wave": wave,
        "arc": np.stack([curvature, letters * 0.35], 1),
        "weight": some(-0.02, 0.04),
        "fill": some(0, 255, 3),
        "fill_opacity": often(0.8),
        "fill_ramp": some(-20, 20, 2),
        "outline": some(0, 0.08),
        "outline_softness": some(0, 0.05),
        "outline_colour": some(0, 255, 3),
        "outline_opacity": often(0.5),
        "shadow_steps": rng.choice([0, 0, 1, 3], COUNT),
        "shadow_offset": some(-0.1, 0.1, 2),
        "shadow_softness": some(0, 0.1),
        "shadow_colour": some(0, 255, 3),
        "shadow_opacity": some(0.3, 1),
        "other_colour": some(0, 255, 3),
        "other_opacity": 0.8 * often(0.5),
        "plate": np.stack([flat - 0.2, flat - 1, letters * 0.7 + 0.2, flat + 0.3], 1),
        "plate_radius": some(0, 0.2),
        "plate_colour": some(0, 255, 3),
        "plate_opacity": 0.9 * often(0.5),
        "plate_border": 0.06 * often(0.5),
        "rule": np.stack([some(0.1, 0.2), 0.04 * often(0.4)], 1),
        "ground": rng.integers(0, 3, COUNT),
        "ground_matrix": some(-40, 40, 6),
        "ground_colour": some(0, 255, 3),
        "ground_strength": some(0, 1),
        "ground_centre": some(60, 200, 3),
        "ground_ramp": some(-40, 40, 2),
        "ink": rng.integers(0, 3, COUNT),
        "ink_matrix": some(-40, 40, 6),
        "ink_strength": some(0, 0.6) * often(0.6),
        "ink_centre": some(60, 200),
        "show_through": some(0, 0.6),
    }
    for name, part in columns.items():
        values[:, SLICES[name]] = np.asarray(part, np.float32).reshape(COUNT, -1)
    glyphs = rng.integers(0, 4, (COUNT, GLYPHS)).astype(np.int32)
    glyphs[np.arange(GLYPHS) >= letters[:, None]] = -1
    size, turn = some(0.8, 1.2, GLYPHS), some(-0.2, 0.2, GLYPHS)
    pens = np.broadcast_to(np.arange(GLYPHS) * 0.7, size.shape)
    axes = [axis * EM_PIXELS / size for axis in (np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn))]
    layer = rng.random(size.shape) < 0.3
    places = np.stack([pens, some(-0.1, 0.1, GLYPHS), *axes, size, layer], 2).astype(np.float32)
    return SynthParams(values, np.full((COUNT, MAX_CHARACTERS), -1, np.int16), glyphs, places)


def largest_differences(device):
    """Return how far the kernel is from the reference in shades, at most and on average, and what a picture varies."""
    from inkmill.kernels.compose import compose as kernel

    rng = np.random.default_rng(0)
    glyphs, params = atlas(rng), table(rng)
    pictures = rng.integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    tensors = (params.values, params.glyphs, params.places, glyphs.distances, glyphs.boxes)
    fourth = np.zeros((3, SIDE, SIDE, 1), np.uint8)
    tensors = [torch.from_numpy(array).to(device) for array in (*tensors, np.concatenate([pictures, fourth], 3))]
    columns = {name: part.start for name, part in SLICES.items()}
    height, width, drawn = 20, 40, 33
    widths = torch.full((COUNT,), drawn, dtype=torch.int32, device=device)
    plain = kernel(*tensors, (height, width), columns, STEPS_PER_EM).cpu().numpy()
    padded = kernel(*tensors, (height, width), columns, STEPS_PER_EM, widths).cpu().numpy()
    grounds = ground_cells(pictures)
    narrow = compose(params, glyphs, grounds, height, drawn)
    narrow = np.concatenate([narrow, np.repeat(narrow[:, :, -1:], width - drawn, 2)], 2)
    pairs = [(plain, compose(params, glyphs, grounds, height, width)), (padded, narrow)]
    differences = [np.abs(one.astype(int) - other) for one, other in pairs]
    most = max(int(difference.max()) for difference in differences)
    return most, max(float(difference.mean()) for difference in differences), min(one.std() for one, _ in pairs)


@pytest.mark.slow
def test_the_composer_draws_what_the_reference_draws():
    script = SCRIPT.format(here=str(Path(__file__).parent))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    most, mean, spread = map(float, done.stdout.split())
    assert most <= 1
    assert mean <= 0.001
    assert spread > 30  # there is something to see


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_composer_draws_the_same_on_a_gpu():
    most, mean, spread = largest_differences("cuda")
    assert most <= 24  # a pixel at the border of a glyph's box may fall to the other side
    assert mean <= 0.01
    assert spread > 30
