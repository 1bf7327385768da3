from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inkmill.errors import ModelFileError
from inkmill.modelfile.torch_file import load_checkpoint
from inkmill.training.checkpoint import LATEST, find_latest, save_checkpoint


def test_newest_checkpoints_stay_and_the_link_points_at_the_last(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        save_checkpoint(tmp_path, {"epoch": epoch}, epoch, epoch * 10, keep=2)
    names = sorted(path.name for path in tmp_path.glob("model_epoch_*"))
    assert names == ["model_epoch_003_step_00030.pth", "model_epoch_004_step_00040.pth"]
    assert load_checkpoint(tmp_path / LATEST) == {"epoch": 4}


def test_newest_is_found_by_step_even_without_the_link(tmp_path: Path) -> None:
    for epoch, step in ((9, 99999), (10, 100000)):
        save_checkpoint(tmp_path, {}, epoch, step, keep=5)
    (tmp_path / LATEST).unlink()
    found = find_latest(tmp_path)
    assert found is not None
    assert found.name == "model_epoch_010_step_100000.pth"


def test_what_a_killed_run_left_unfinished_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".model_epoch_001_step_00010.pth.1a2b3c4d.pth").write_bytes(b"half of it")
    save_checkpoint(tmp_path, {}, 1, 10, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model_epoch_001_step_00010.pth", LATEST]


def test_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert find_latest(tmp_path) is None


def test_pickled_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "tao.pth"
    torch.save(torch.nn.Linear(1, 1), path)
    with pytest.raises(ModelFileError, match="pickled model, which could run code"):
        load_checkpoint(path)


def test_damaged_checkpoint_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "broken.pth"
    path.write_bytes(b"PK\x03\x04 not a checkpoint")
    with pytest.raises(ModelFileError, match="damaged"):
        load_checkpoint(path)
