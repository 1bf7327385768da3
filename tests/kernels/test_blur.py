"""The kernel that blurs, beside torch's own pass: on a GPU, and by Triton's interpreter in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from inkmill.data.augment import Augmentation, torch_passes
from inkmill.data.augment.ops import parse_ops

triton = pytest.importorskip("triton")

SHAPES = [(5, 11, 37, 3), (4, 16, 32, 1), (4, 20, 61, 3)]  # the last is larger than a block
BLUR = parse_ops([{"op": "blur", "p": 0.7, "sigma": [0.1, 4]}])
NEAR = 0.13  # half precision: a sixteenth after the lines, and another after the columns

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_blur import largest_difference
print(largest_difference("cpu"))
"""


def largest_difference(device: str) -> float:
    from inkmill.kernels.blur import blur

    augmentation, largest = Augmentation(BLUR), 0.0
    column, radius = augmentation.layout.start("blur"), augmentation.layout.blur_radius
    for batch, height, width, channels in SHAPES:
        generator = torch.Generator().manual_seed(1)
        pixels = torch.rand((batch, channels, height, width), generator=generator).mul(255).half().permute(0, 2, 3, 1)
        values = torch.from_numpy(augmentation.sample(3, 2, np.arange(batch), height, width).values)
        assert (values == 0).any()
        assert (values > 1).any()
        for rows in (None, torch.tensor([3, 0])):
            expected = torch_passes.blur(pixels.float(), rows, values, column, radius)
            on_device = None if rows is None else rows.to(device)
            found = blur(pixels.to(device), on_device, values.to(device), column, radius).cpu()
            assert found.shape == expected.shape
            largest = max(largest, float((found.float() - expected).abs().max()))
    return largest


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="interpreters of older Triton cannot loop up to a loaded number with NumPy 2.5",
)
def test_the_kernel_agrees_with_torch() -> None:
    script = SCRIPT.format(here=str(Path(__file__).parent))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= NEAR


@pytest.mark.gpu
def test_the_kernel_agrees_with_torch_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    assert largest_difference("cuda") <= NEAR
