from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "diagnose_profiles.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="limits cores as Linux does")
def test_each_profile_is_diagnosed_and_each_plan_tried_on_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--smoke", "--json", str(found)])
    for _ in range(2):  # the second time all is there already
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert left.value.code == 0
        result = json.loads(found.read_text())
        names = ["many cores", "slow disk"]
        assert [plan["profile"] for plan in result["plans"]] == names
        assert {name: list(speeds) for name, speeds in result["tried"].items()} == dict.fromkeys(names, names)
        turns = [each for speeds in result["tried"].values() for each in speeds.values()]
        assert all(len(each) == 2 and min(each) > 0 for each in turns), turns
    assert "plan of many cores" in capsys.readouterr().out
