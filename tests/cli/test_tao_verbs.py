"""A TAO user's day: the documentation's spec file, unchanged, through TAO's verbs with TAO's keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inkmill.cli.main import run

TAO_EXAMPLE = Path(__file__).parent.parent / "data" / "tao_example.yaml"


@pytest.mark.slow
def test_the_documentations_spec_runs_through_every_verb(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    labels = (some / "labels.tsv").read_text(encoding="utf-8").replace("images/", "")
    (some / "gt_list.txt").write_text(labels, encoding="utf-8")
    (tmp_path / "character_list").write_text("\n".join("0123456789") + "\n", encoding="utf-8")
    lmdb, model = f"{tmp_path}/convert_dataset", f"{tmp_path}/train/best_accuracy.safetensors"

    def tao(verb: str, *keys: str) -> int:
        return run([verb, "-e", str(TAO_EXAMPLE), f"results_dir={tmp_path}", *keys])

    places = (f"dataset_convert.input_img_dir={some}/images", f"dataset_convert.gt_file={some}/gt_list.txt")
    assert tao("dataset_convert", *places) == 0
    data = (f"dataset.train_dataset_dir=[{lmdb}]", f"dataset.val_dataset_dir={lmdb}", "dataset.workers=0")
    small = ("model.feature_channel=32", "model.hidden_size=16", "train.num_epochs=2")  # for the test's sake
    assert tao("train", *data, f"dataset.character_list_file={tmp_path}/character_list", *small) == 0
    assert tao("evaluate", f"evaluate.checkpoint={model}", f"evaluate.test_dataset_dir={lmdb}") == 0
    assert "word_accuracy" in json.loads((tmp_path / "evaluate" / "metrics.json").read_text(encoding="utf-8"))
    capsys.readouterr()
    asked = (f"inference.checkpoint={model}", f"inference.inference_dataset_dir={some}/images")
    assert tao("inference", *asked, "--format", "jsonl") == 0
    assert len(capsys.readouterr().out.splitlines()) == 40
