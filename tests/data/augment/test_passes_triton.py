"""The GPU kernels beside torch's own passes: by Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from inkmill.data.augment import Augmentation
from inkmill.data.augment.passes_torch import _shade, _warp, constants_on
from inkmill.data.augment.spec import load_preset, parse_ops

pytest.importorskip("triton")

SHAPES = [(5, 11, 37, 3), (4, 16, 32, 1)]
SPECS = {
    "scene_text": load_preset("scene_text"),
    "waves alone": parse_ops([{"op": "curve", "p": 1}]),
    "place alone": parse_ops([{"op": "rotate", "p": 1, "degrees": 10}]),
    "colour alone": parse_ops([{"op": "contrast", "p": 1, "factor": [0.5, 1.5]}]),
    "noise alone": parse_ops([{"op": "noise", "p": 1, "std": [5, 15]}]),
}

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_passes_triton import SHAPES, SPECS, largest_differences
for name in SPECS:
    for shape in SHAPES:
        print(*largest_differences(SPECS[name], shape))
"""


def largest_differences(ops, shape):
    """Return how far the kernels are from torch: places, and shades with some rows taken from elsewhere."""
    from inkmill.data.augment import passes_triton

    augmentation, (batch, height, width, channels) = Augmentation(ops), shape
    layout = augmentation.layout
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (batch + 3, channels, height, width), generator=generator, dtype=torch.uint8)
    images = images.permute(0, 2, 3, 1)  # their memory is in another order, as someone's own tensors may be
    index = torch.randperm(batch + 3, generator=generator)[:batch]
    values = torch.from_numpy(augmentation.draw(3, 2, np.arange(batch), height, width).values)
    ring = constants_on(torch.device("cpu"))[0]
    places = 0.0
    pixels = images[index]
    if layout.space or layout.waves:
        pixels = passes_triton.warp(images, index, values, layout)
        places = float((pixels.float() - _warp(images, index, values, layout)).abs().max())
    blurred = torch.rand((2, height, width, channels), generator=generator).mul(255).to(pixels.dtype)
    place = torch.full((batch,), -1)
    place[3], place[0] = 0, 1
    shades = [
        (passes_triton.shade(*given, values, ring, layout).int() - _shade(*given, values, ring, layout).int()).abs()
        for given in [(pixels, None, None), (pixels, blurred, place), (blurred[[0, 1, 0, 1, 0]][:batch], pixels, None)]
    ]
    return places, max(int(one.max()) for one in shades), max(float(one.float().mean()) for one in shades)


def test_the_kernels_agree_with_torch():
    script = SCRIPT.format(here=str(Path(__file__).parent))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [[float(number) for number in line.split()] for line in done.stdout.splitlines()]
    assert len(lines) == len(SHAPES) * len(SPECS)
    for places, most, mean in lines:
        assert places <= 0.07  # half precision: a sixteenth
        assert most <= 1
        assert mean <= 0.001
