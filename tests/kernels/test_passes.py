"""The GPU kernels that take each pixel by itself, beside torch: by Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from inkmill.data.augment import Augmentation, torch_passes
from inkmill.data.augment.ops import load_preset, parse_ops
from inkmill.data.augment.params import LUMA
from inkmill.data.augment.random_numbers import NOISE_UNIT, noise_ring

pytest.importorskip("triton")

SHAPES = [(5, 11, 37, 3), (4, 16, 32, 1), (4, 20, 61, 3)]  # the last is larger than any block
SPECS = {
    "scene_text": load_preset("scene_text"),
    "waves alone": parse_ops([{"op": "curve", "p": 1}]),
    "place alone": parse_ops([{"op": "rotate", "p": 1, "degrees": 10}]),
    "colour alone": parse_ops([{"op": "contrast", "p": 1, "factor": [0.5, 1.5]}]),
    "noise alone": parse_ops([{"op": "noise", "p": 1, "std": [5, 15]}]),
    "cut-outs alone": parse_ops([{"op": "cutout", "p": 0.7, "count": 3, "size": [0.2, 0.6]}]),
}

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_passes import SHAPES, SPECS, largest_differences
for name in SPECS:
    for shape in SHAPES:
        print(*largest_differences(SPECS[name], shape))
"""


def largest_differences(ops, shape):
    """Return how far the kernels are from torch: places, shades, and the share of shades that differ.

    Each pass that puts other images in the place of some is tested with a few, with all, and with none.
    """
    from inkmill.kernels.finish import finish
    from inkmill.kernels.shade import shade
    from inkmill.kernels.warp import warp

    augmentation, (batch, height, width, channels) = Augmentation(ops), shape
    layout = augmentation.layout
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (batch + 3, channels, height, width), generator=generator, dtype=torch.uint8)
    images = images.permute(0, 2, 3, 1)  # their memory is in another order, as a user's own tensors may be
    index = torch.randperm(batch + 3, generator=generator)[:batch]
    values = torch.from_numpy(augmentation.sample(3, 2, np.arange(batch), height, width).values)
    places = 0.0
    pixels = images[index]
    if "warp" in layout.passes:
        columns = layout.start("space"), layout.start("waves"), layout.waves
        pixels = warp(images, index, values, *columns)
        places = far(pixels, torch_passes.warp(images, index, values, *columns))
    some = torch.tensor([3, 0])
    place = torch.full((batch,), -1)
    place[some] = torch.arange(2)
    others = torch.rand((2, channels, height, width), generator=generator).mul(255).permute(0, 2, 3, 1)
    if layout.cutouts:
        cutout_shades = values[:, layout.columns["cutouts"]][:, 4::5]
        cutout_shades += 0.5 - cutout_shades % 1  # half shades, which round to the even one
    ring = torch.from_numpy(noise_ring().copy())
    in_shade = values, ring, layout.start("colour"), layout.start("noise"), NOISE_UNIT, tuple(LUMA.tolist())
    in_finish = values, layout.start("cutouts"), layout.cutouts
    differences = []
    for kernel, reference, numbers, dtype in (
        (shade, torch_passes.shade, in_shade, pixels.dtype),
        (finish, torch_passes.finish, in_finish, torch.uint8),
    ):
        few, these = others.to(dtype), pixels.to(dtype)
        for given in [(these, None, None), (these, few, place), (few[[0, 1, 0, 1, 0]][:batch], these, None)]:
            one, other = (run(*given, *numbers) for run in (kernel, reference))
            differences.append((one.int() - other.int()).abs())
    return places, max(int(one.max()) for one in differences), max(float(one.float().mean()) for one in differences)


def far(one, other):
    return float((one.float() - other.float()).abs().max())


@pytest.mark.slow
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
