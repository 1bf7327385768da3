"""Pixels as the network takes them: bytes 0..255 to numbers -1..1. torch's half is `tasks.model.to_input`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIDDLE = 127.5
"""Gray that becomes 0, and half the range of a byte: (x - MIDDLE) / MIDDLE."""


def to_network(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return uint8 (B, H, W, C) images as contiguous float32 (B, C, H, W) in [-1, 1]."""
    return np.ascontiguousarray((images.transpose(0, 3, 1, 2).astype(np.float32) - MIDDLE) / MIDDLE)
