"""A sample of benchmarks/fuzz.py: damaged and hostile files are read or refused, whatever they hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent.parent.parent / "benchmarks" / "fuzz.py"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited and measured by Linux' means")
def test_damaged_models_and_images_end_in_a_sentence_or_a_reading(folder: Path) -> None:
    sample = ["--files", "65", "--images", "60", "--sets", "20", "--seed", "5", "--models", str(folder)]
    ended = subprocess.run([sys.executable, FUZZ, *sample], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "145" in ended.stdout.splitlines()[-2]
