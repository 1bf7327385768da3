"""Small models on a busy machine: a second thread only waits for the first."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Every test here."""
