"""DALI's absence is one sentence with the pip line for the CUDA at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from inkmill.data.loaders.dali import dali_extra

CODE = """
import sys
sys.modules["torch"] = None
from inkmill.data.loaders.dali import has_dali
assert not has_dali()
from inkmill.data.loaders.dali.loader import DaliLoader
"""


def test_absence_names_the_package_and_the_extra(tmp_path: Path) -> None:
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "__init__.py").touch()  # hides NVIDIA's packages, as where they are not installed
    found = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    sentence = found.stderr.strip().splitlines()[-1]
    assert "the DALI loader needs the package 'nvidia.dali', which is not installed" in sentence
    assert "pip install 'inkmill[dali-cuda1" in sentence


def test_the_extra_is_one_that_the_project_has() -> None:
    assert dali_extra() in ("dali-cuda12", "dali-cuda13")
