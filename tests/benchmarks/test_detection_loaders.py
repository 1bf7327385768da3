from __future__ import annotations

import runpy
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyclipper")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "detection_loaders.py"
BOX = np.array([[10, 20], [90, 20], [90, 50], [10, 50]], np.float32)


def test_maps_in_workers_are_db_s() -> None:
    shrunk, counted, threshold, grown = runpy.run_path(str(SCRIPT))["db_maps"]([BOX, BOX + 60], (False, True), 160)
    distance = 80 * 30 * (1 - 0.4**2) / 220  # 9.2 pixels
    assert shrunk[35].sum() == pytest.approx(80 - 2 * distance, abs=2)
    assert counted[95, 110] == 0
    assert counted[35, 50] == 1
    assert threshold[20, 50] == pytest.approx(0.7, abs=0.01)
    assert threshold[35, 50] == pytest.approx(0.3, abs=0.01)
    assert grown[12, 50] == 1
    assert grown[8, 50] == 0


@pytest.mark.slow
def test_all_ways_that_this_machine_has_are_measured(tmp_path, monkeypatch, capsys) -> None:
    for number in range(4):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((120, 160, 3), 90, np.uint8))
    region = '[{"transcription": "a", "points": [[10, 20], [90, 20], [90, 50], [10, 50]]}]'
    (tmp_path / "Label.txt").write_text("".join(f"{number}.png\t{region}\n" for number in range(4)))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), "--smoke"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr().out
    assert "RAM, CPU" in shown
    assert "peers" in shown
