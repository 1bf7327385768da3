from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize


@pytest.fixture(scope="session")
def crops(captchas: Path) -> dict[int, np.ndarray]:
    """64 real captchas resized to 32 x 128, by number of channels."""
    files = sorted((captchas / "images").iterdir())[:64]
    return {c: np.stack([Resize(32, 128, c).apply(decode(f.read_bytes(), c))[0] for f in files]) for c in (1, 3)}
