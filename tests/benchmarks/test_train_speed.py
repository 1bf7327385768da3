from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "train_speed.py"


@pytest.mark.slow
def test_the_training_benchmark_measures_every_way_to_feed_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--smoke", "--json", str(tmp_path / "rows.json")])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert left.value.code == 0
    result = json.loads((tmp_path / "rows.json").read_text())
    assert result["machine"]["cpu"]
    rows = {row["data"]: row for row in result["rows"]}
    assert list(rows) == [
        *("repeated", "streamed", "ram", "streamed, cpu", "ram, cpu", "device", "repeated again"),
        *("inkmill train", "classic"),
    ]
    assert rows["repeated"]["of_step"] == 1
    assert rows["classic"]["times_classic"] == 1
    ratio = rows["ram"]["images_per_s"] / rows["repeated"]["images_per_s"]
    assert rows["ram"]["of_step"] == pytest.approx(ratio, abs=2e-3)
    assert "of step" in capsys.readouterr().out
