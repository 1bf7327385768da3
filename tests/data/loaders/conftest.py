"""What the tests of loaders share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inkmill.data.loaders import LoadPlan
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Batch

sys.path.insert(0, str(Path(__file__).parent))  # handed on to worker processes, which import captcha_source too

from captcha_source import CaptchaSource

Snapshot = list[tuple[list[str], list[str], bytes, bytes, list[int]]]


@pytest.fixture(scope="session")
def captcha_plan(captchas: Path) -> Callable[..., LoadPlan]:
    """Return a function that plans to load the first captchas: 67 of them, 8 a batch, in colour."""

    def plan(count: int = 67, faults: dict[str, frozenset[int]] | None = None, **changes: Any) -> LoadPlan:
        options = {"resize": Resize(32, 64, 3), "batch_size": 8, "seed": 3} | changes
        return LoadPlan(CaptchaSource.first(captchas, count, **(faults or {})), **options)

    return plan


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Any], Snapshot]:
    """Return a function that writes down batches to the last byte."""

    def one(batch: Batch) -> tuple[list[str], list[str], bytes, bytes, list[int]]:
        images = np.asarray(batch.images)
        assert images.dtype == np.uint8
        assert len(images) == len(batch) == len(batch.index) == len(batch.widths) == len(batch.texts)
        return batch.keys, batch.texts, images.tobytes(), batch.widths.tobytes(), batch.index.tolist()

    return lambda batches: [one(batch) for batch in batches]
