"""The warp of parts of pictures as a kernel beside its reference, on a GPU and in Triton's interpreter without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_warp_pages import largest_difference
print(largest_difference("cpu", 3), largest_difference("cpu", 1))
"""
MATRICES = [[1.2, 0.1, -3, -0.1, 1.1, 2, 0.001, 0, 1], [5, 0, -20, 0, 5, -10, 0, 0, 1], [0.3, 0, 4, 0, 0.3, 5, 0, 0, 1]]


def largest_difference(device: str, channels: int) -> float:
    """Return the largest difference between kernel and reference, in shades."""
    from inkmill.data.augment.page_passes import Pages, _warped
    from inkmill.kernels.warp_pages import warp_pages

    rng = np.random.default_rng(0)
    pages = [rng.integers(0, 256, shape, np.uint8) for shape in ((37, 50, channels), (60, 21, channels))]
    memory = torch.from_numpy(np.concatenate([page.ravel() for page in pages])).to(device)
    headers = torch.tensor([[0, 37, 50, 50], [pages[0].size, 60, 21, 21]], device=device)
    given = Pages(memory, headers, channels)
    values, places, index = torch.tensor(MATRICES, device=device), [1, 3, 2], [1, 0, 1]
    found = warp_pages(
        given.memory,
        given.headers,
        torch.tensor(index, device=device),
        values,
        torch.tensor(places, dtype=torch.int32, device=device),
        0,
        (19, 23),
        channels,
    ).cpu()
    wanted = [
        _warped(torch.from_numpy(pages[number]).float(), values[row].cpu(), places[row], 19, 23)
        for row, number in enumerate(index)
    ]
    assert any(one.max() > 0 for one in wanted)
    return float((found.float() - torch.stack(wanted)).abs().max())


@pytest.mark.slow
def test_the_kernel_is_the_reference_in_the_interpreter() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    script = SCRIPT.format(here=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(float(one) < 0.07 for one in done.stdout.split()), "float16 holds a sixteenth of a shade"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("channels", [1, 3])
def test_the_kernel_is_the_reference_on_a_gpu(channels: int) -> None:
    assert largest_difference("cuda", channels) < 0.07
