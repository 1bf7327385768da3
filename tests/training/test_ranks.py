"""Several processes, one training: torchrun on the CPU (gloo), what several GPUs do with nccl."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
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


def started(rank: int, port: int, *arguments: str) -> subprocess.Popen[str]:
    """Start one of two ranks as torchrun would, but with nobody who ends it when the other fails."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none", "OMP_NUM_THREADS": 1}
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
    command = [sys.executable, "-m", "inkmill", "train", *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ended(rank: subprocess.Popen[str]) -> None:
    """Leave neither a process nor a pipe."""
    rank.kill()
    rank.wait()
    for pipe in (rank.stdout, rank.stderr):
        assert pipe is not None
        pipe.close()


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_ends_the_other_and_one_sentence_names_it(
    failing: int, few_captchas: Path, tmp_path: Path, small_settings: list[str]
) -> None:
    port = free_port()
    settings = [str(few_captchas), f"results_dir={tmp_path}", *small_settings]
    missing = [f"train.pretrained_model_path={tmp_path}/missing.safetensors"]
    ranks = [started(rank, port, *settings, *(missing if rank == failing else [])) for rank in (0, 1)]
    try:
        said = [rank.communicate(timeout=240)[1].strip() for rank in ranks]
    finally:
        for rank in ranks:
            ended(rank)
    assert [rank.returncode for rank in ranks] == [2, 2], said
    assert "Traceback" not in "".join(said)
    told = ["".join(line for line in text.splitlines(True) if line.startswith("inkmill:")) for text in said]
    reason = f"{tmp_path}/missing.safetensors: no such model file"
    assert told[failing].startswith(f"inkmill: {reason}")
    sentence = f"rank 1 of 2 failed, so training stops: {reason}"
    if failing == 1:
        assert told[0].startswith(f"inkmill: {sentence}")
        assert told[0].count("inkmill:") == 1
    else:
        assert told[1] == ""
    status = json.loads((tmp_path / "train" / "status.json").read_text("utf-8").splitlines()[-1])
    assert status["status"] == "FAILURE"
    assert status["message"].startswith(sentence if failing == 1 else reason)


@pytest.mark.slow
def test_results_that_cannot_be_written_end_the_other_rank_too(
    few_captchas: Path, tmp_path: Path, small_settings: list[str]
) -> None:
    (tmp_path / "taken").write_text("a file, not a folder", "utf-8")
    port = free_port()
    ranks = [
        started(rank, port, str(few_captchas), f"results_dir={tmp_path}/taken", *small_settings) for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            ended(rank)
    assert [rank.returncode for rank in ranks] == [2, 2], said
    assert [text.count("inkmill:") for text in said] == [1, 0]
    assert "Traceback" not in "".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_was_killed_ends_the_other(
    killed: int, few_captchas: Path, tmp_path: Path, small_settings: list[str]
) -> None:
    port, status = free_port(), tmp_path / "train" / "status.json"
    settings = [str(few_captchas), f"results_dir={tmp_path}", *small_settings, "train.num_epochs=1000"]
    ranks = [started(rank, port, *settings) for rank in (0, 1)]
    try:
        until = time.monotonic() + 240
        while not (status.is_file() and '"RUNNING"' in status.read_text("utf-8")) and time.monotonic() < until:
            assert [rank.poll() for rank in ranks] == [None, None]
            time.sleep(0.2)
        ranks[killed].kill()
        other = ranks[1 - killed]
        said = other.communicate(timeout=60)[1]
    finally:
        for rank in ranks:
            ended(rank)
    assert other.returncode == 2, said
    assert f"inkmill: rank {killed} of 2 is gone without a word" in said
    assert "Traceback" not in said
