"""The kernel that draws detection's maps, beside NumPy: on a GPU, and by Triton's interpreter in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from inkmill.tasks.detection.targets import MapOptions
from inkmill.tasks.detection.targets import text_maps as reference

triton = pytest.importorskip("triton")

SIZE = (96, 160)
NEAR = 2e-3
SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_text_maps import largest_difference
print(largest_difference("cpu"))
"""


def drawn(seed: int, size: tuple[int, int] = SIZE, counts: tuple[int, ...] = (4, 0, 3)) -> tuple[np.ndarray, ...]:
    """Return regions of all kinds: upright, turned, self-crossing, many-cornered, half outside, without area."""
    random = np.random.default_rng(seed)
    polygons = []
    for number in range(sum(counts)):
        centre = random.uniform(-10, 1, 2) + random.uniform(0, 1, 2) * (size[1], size[0])
        wide, high, angle = random.uniform(10, 70), random.uniform(5, 30), random.uniform(0, 2 * np.pi)
        around = np.linspace(0, 2 * np.pi, 9)[:-1] if number % 3 == 2 else None
        corners = (
            np.array([[-wide, -high], [wide, -high], [wide, high], [-wide, high]]) / 2
            if around is None
            else np.stack([wide / 2 * np.cos(around), high / 2 * np.sin(around)], axis=1)
        )
        if number % 5 == 4:
            corners[[1, 2]] = corners[[2, 1]]  # it crosses itself
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        polygons.append((corners @ turn + centre).astype(np.float32))
    polygons[0] = np.zeros((4, 2), np.float32)
    starts = np.cumsum([0, *map(len, polygons)]).astype(np.int32)
    pictures = np.cumsum([0, *counts]).astype(np.int32)
    ignore = (np.arange(len(polygons)) % 4 == 3).astype(np.uint8)
    return np.concatenate(polygons), starts, pictures, ignore


def largest_difference(device: str) -> float:
    from inkmill.kernels.text_maps import text_maps

    largest = 0.0
    for seed, options in enumerate((MapOptions(), MapOptions("shrink", 0.4, min_height=4, stride=1))):
        arrays = drawn(seed)
        expected = reference(*arrays, SIZE, options)
        assert all(expected[:, plane].std() > 0 for plane in range(3))
        rest = (SIZE, options.rule == "shrink", options.share, options.min_height, options.min_visible, options.stride)
        found = text_maps(*(torch.from_numpy(array).to(device) for array in arrays), *rest).cpu().numpy()
        assert found.shape == expected.shape
        apart = np.abs(found - expected)
        assert (apart[:, 1:] > NEAR).mean() < 1e-4  # a pixel on an outline may fall to either side
        largest = max(largest, float(apart[:, 0].max()))
    return largest


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="interpreters of older Triton cannot loop up to a loaded number with NumPy 2.5",
)
def test_the_kernel_draws_the_maps_of_the_reference() -> None:
    script = SCRIPT.format(here=str(Path(__file__).parent))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < NEAR


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_kernel_draws_the_same_maps_each_time() -> None:
    assert largest_difference("cuda") < NEAR
    assert largest_difference("cuda") == largest_difference("cuda")
