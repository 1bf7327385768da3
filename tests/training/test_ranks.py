"""Several processes, one training: torchrun on the CPU (gloo), what several GPUs do with nccl."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inkmill.config.spec import Spec
from inkmill.training.run import train


@pytest.mark.slow
def test_two_ranks_share_an_epoch_and_one_process_goes_on(
    small_spec: Callable[..., Spec], few_captchas: Path, tmp_path: Path, small_settings: list[str]
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "inkmill"]
    command += ["train", str(few_captchas), f"results_dir={tmp_path}", *small_settings]
    command += ["dataset.batch_size=8", "train.num_epochs=1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    shared = json.loads((tmp_path / "train" / "metrics.json").read_text())
    assert shared["steps"] == 7  # 108 samples in global batches of 16
    assert run.stdout.count("validation: word accuracy") == 1  # rank 1 keeps quiet
    alone = train(small_spec("dataset.batch_size=16", "train.num_epochs=2")).metrics
    assert alone["history"][0] == shared["history"][0]
    assert alone["steps"] == 14
