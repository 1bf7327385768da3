"""DALI's graph for one batch, to compare engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inkmill.data.augment.params import AugmentParams
from inkmill.data.loaders.dali.inputs import augment_inputs
from inkmill.data.pipeline.resize import Resize


@pytest.fixture(scope="session")
def apply_dali() -> Callable[..., np.ndarray]:
    """Return a function that augments uint8 (B, H, W, C) by DALI's operators; "gpu" is the first CUDA device."""
    from inkmill.data.loaders.dali.graph import DaliEngine, Placement, build_pipeline

    def apply(images: np.ndarray, params: AugmentParams, device: Any = "cpu") -> np.ndarray:
        height, width, channels = images.shape[1:]
        inputs = {"images": images} | augment_inputs(params, channels)
        engine = DaliEngine(params.layout, channels, images[0].size, device)
        placement = Placement("host", device, 0 if device == "gpu" else None, threads=1)
        pipeline = build_pipeline(
            lambda: tuple(inputs.values()),
            list(inputs),
            len(images),
            Resize(height, width, channels),
            engine,
            placement,
        )
        (out,) = pipeline.run()
        return np.array((out.as_cpu() if device == "gpu" else out).as_array())

    return apply
