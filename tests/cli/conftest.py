"""A few real captchas for tests that run whole verbs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def some(captchas: Path, tmp_path: Path) -> Path:
    """A folder of 40 real captchas with a label file, the test's own to spoil."""
    folder = tmp_path / "some"
    (folder / "images").mkdir(parents=True)
    lines = (captchas / "labels.tsv").read_text(encoding="utf-8").splitlines()[:40]
    for line in lines:
        shutil.copy(captchas / line.split("\t")[0], folder / "images")
    (folder / "labels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
