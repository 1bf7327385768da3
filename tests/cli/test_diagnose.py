from __future__ import annotations

import json
from pathlib import Path

import pytest

from inkmill.cli.main import run
from inkmill.config.load import load_spec

pytestmark = pytest.mark.slow


def test_diagnose_writes_its_reports_and_a_plan_that_train_takes(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given = [
        *(f"dataset.train={some}", f"results_dir={tmp_path}/r", "train.device=cpu", "train.num_epochs=2"),
        *("model.backbone=VGG", "model.feature_channel=8", "model.sequence=none", "dataset.batch_size=8"),
    ]
    left = ["--json", f"{tmp_path}/d.json", "--html", f"{tmp_path}/d.html", "--apply", f"{tmp_path}/better.yaml"]
    assert run(["diagnose", *given, "dataset.workers=0", "--seconds", "2", *left]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "d.json").read_text("utf-8"))
    assert found["verdict"]["sentence"] in said.replace("\n", " ")
    assert {"stalls", "stages", "plan", "predicted_images_per_s", "measured_images_per_s", "machine"} <= found.keys()
    assert "<svg" in (tmp_path / "d.html").read_text("utf-8")
    before, after = load_spec(None, [*given, "dataset.workers=0"]), load_spec(tmp_path / "better.yaml")
    for key, value in found["plan"]["change"].items():
        section, name = key.split(".")
        assert getattr(getattr(after, section), name) == value
        setattr(getattr(before, section), name, value)
    assert after == before
    assert run(["train", *given, "dataset.val_fraction=0.2"]) == 0
    assert "as measured by diagnose" in capsys.readouterr().out


def test_no_data_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert run(["diagnose"]) == 2
    assert "dataset.train" in capsys.readouterr().err
