"""Every benchmark finds what it imports, says what it takes, and shows its command."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if "argparse" in path.read_text("utf-8"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_explains_itself(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.syspath_prepend(FOLDER)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FOLDER / script), run_name="__main__")
    assert left.value.code == 0
    assert "usage: " in capsys.readouterr().out


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_head_of_a_benchmark_shows_its_command(script: str) -> None:
    head = ast.get_docstring(ast.parse((FOLDER / script).read_text("utf-8")))
    assert head is not None
    assert f"python benchmarks/{script}" in head
