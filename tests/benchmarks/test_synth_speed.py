from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_benchmark_of_synthetic_text_measures_every_step(monkeypatch, capsys):
    font = ROOT / "src" / "inkmill" / "synth" / "carried_fonts" / "OpenSans-Regular.ttf"
    monkeypatch.setattr(sys, "argv", ["synth_speed.py", "--smoke", "--fonts", str(font)])
    runpy.run_path(str(ROOT / "benchmarks" / "synth_speed.py"), run_name="__main__")
    shown = capsys.readouterr().out
    for name in ("texts", "rows", "64 x 64", "32 x 256", "loader", "loader, with changes"):
        assert f" {name} " in shown
