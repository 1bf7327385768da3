"""kill -9 and Ctrl-C; the run must end as one that was never stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inkmill.config.spec import Spec
from inkmill.modelfile.torch_file import load_checkpoint, read_weights
from inkmill.training.checkpoint import find_latest
from inkmill.training.run import train

KILLS = 10


@pytest.mark.slow
def test_ten_kills_change_nothing(small_spec: Callable[..., Spec], tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["inkmill.training.run"])
    settings = [
        "train.num_epochs=20",
        "train.checkpoint_interval_unit=step",
        "train.checkpoint_interval=2",
        "train.model_ema=true",
        "train.optim.lr_scheduler=one_cycle",
        "dataset.augmentation.aug_prob=0.5",
    ]
    whole = small_spec(*settings, f"results_dir={tmp_path / 'whole'}")
    killed = small_spec(*settings, f"results_dir={tmp_path / 'killed'}")
    moments = random.Random(5)
    for number in range(KILLS):
        child = context.Process(target=train, args=(killed,))
        before = find_latest(tmp_path / "killed" / "train")
        child.start()
        if number % 2:  # some die on their way into the run, the others somewhere in it
            while find_latest(tmp_path / "killed" / "train") == before and child.is_alive():
                child.join(0.01)
        child.join(moments.uniform(0.0, 0.3))
        assert child.exitcode is None, "the run was over before it could be killed"
        child.kill()
        child.join()
    for spec in (killed, whole):
        child = context.Process(target=train, args=(spec,))
        child.start()
        child.join()
        assert child.exitcode == 0
    metrics = [json.loads((tmp_path / name / "train" / "metrics.json").read_text()) for name in ("whole", "killed")]
    for one in metrics:
        del one["waiting"]  # seconds
    assert metrics[0] == metrics[1]
    weights = [read_weights(tmp_path / name / "train" / "best_accuracy.safetensors")[0] for name in ("whole", "killed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_signal_to_the_job_saves_a_checkpoint_in_the_middle_of_the_epoch(
    number: int, code: int, few_captchas: Path, tmp_path: Path, small_settings: list[str]
) -> None:
    command = [sys.executable, "-m", "inkmill", "train", str(few_captchas), f"results_dir={tmp_path}", *small_settings]
    command += ["train.num_epochs=1000", "train.log_every=1", "dataset.workers=1", "train.accumulate=4"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("epoch 2/"):
                os.killpg(run.pid, number)  # as shells, `timeout` and schedulers do
                break
        rest = run.stdout.read()
    assert run.returncode == code, rest
    assert "a checkpoint saved" in rest
    state = load_checkpoint(tmp_path / "train" / "ocr_model_latest.pth")
    assert state["progress"]["epoch"] >= 2
    assert "FAILURE" in (tmp_path / "train" / "status.json").read_text().splitlines()[-1]
