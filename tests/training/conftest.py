"""Tests that write beside the captchas."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def captchas(writable_captchas: Path) -> Path:
    """The captchas that these tests write beside."""
    return writable_captchas
