"""Resuming a run whose data were copied, whose settings changed, or from a checkpoint that the user names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from inkmill.config.spec import Spec
from inkmill.errors import ConfigError, DataError, ModelFileError
from inkmill.modelfile.torch_file import load_checkpoint
from inkmill.training.checkpoint import find_latest
from inkmill.training.run import TrainResult, train

MakeSpec = Callable[..., Spec]
PowerCuts = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def own_captchas(captchas: Path, few_captchas: Path, tmp_path: Path) -> Path:
    """A set that a test may copy and change: its label file."""
    folder = tmp_path / "own"
    (folder / "images").mkdir(parents=True)
    lines = few_captchas.read_text("utf-8").splitlines()[:40]
    for line in lines:
        shutil.copy(captchas / line.partition("\t")[0], folder / "images")
    (folder / "labels.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder / "labels.tsv"


def copied(labels: Path) -> None:
    """Replace a set by a copy of it, whose files have other times."""
    folder = labels.parent
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


pytestmark = pytest.mark.slow

EVERY_STEP = ["train.checkpoint_interval_unit=step", "train.checkpoint_interval=1"]


def output_of(spec: Spec, capsys: pytest.CaptureFixture[str]) -> tuple[TrainResult, str]:
    result = train(spec, console=Console(width=400))
    return result, capsys.readouterr().out


@pytest.mark.parametrize("middle", [True, False])
def test_a_copy_of_the_data_is_the_same_data(
    middle: bool, small_spec: MakeSpec, own_captchas: Path, power_cut: PowerCuts
) -> None:
    spec = small_spec(f"dataset.train={own_captchas}", "train.num_epochs=1", *EVERY_STEP)
    with power_cut(1) if middle else nullcontext():
        train(spec)
    copied(own_captchas)
    assert train(small_spec(f"dataset.train={own_captchas}", "train.num_epochs=2")).metrics["epochs"] == 2


def test_other_data_are_refused_within_an_epoch_and_noted_after_one(
    small_spec: MakeSpec, own_captchas: Path, power_cut: PowerCuts, capsys: pytest.CaptureFixture[str]
) -> None:
    with power_cut(1):
        train(small_spec(f"dataset.train={own_captchas}", *EVERY_STEP))
    with pytest.raises(DataError, match="cannot resume in the middle of an epoch: the seed was"):
        train(small_spec(f"dataset.train={own_captchas}", "train.seed=5"))
    train(small_spec(f"dataset.train={own_captchas}", "train.num_epochs=1"))
    later = small_spec(
        f"dataset.train={own_captchas}", f"dataset.val={own_captchas}", "dataset.batch_size=8", "train.num_epochs=2"
    )
    result, said = output_of(later, capsys)
    assert result.metrics["epochs"] == 2
    assert "the order of the samples is another one from this epoch on: the digest of the data's keys" in said


def test_the_learning_rate_continues_under_another_batch_size(small_spec: MakeSpec, power_cut: PowerCuts) -> None:
    cosine = ["train.num_epochs=4", "train.optim.lr_scheduler=cosine", "train.optim.lr=1e-3"]
    rates: list[float] = []

    def note_rate(optimizer: Optimizer, *_: object) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    hook = register_optimizer_step_post_hook(note_rate)
    try:
        with power_cut(2 * 7):  # in the third epoch's first step; the checkpoint is the second epoch's
            train(small_spec(*cosine))
        before = len(rates)
        train(small_spec(*cosine, "dataset.batch_size=4"))
    finally:
        hook.remove()
    assert len(rates) - before == 2 * 27, "108 samples to train on"
    assert rates[before] == pytest.approx(rates[before - 1], rel=0.2)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(1e-5, rel=0.1)


def test_an_earlier_loaders_checkpoint_resumes_after_a_whole_epoch(
    small_spec: MakeSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(small_spec("train.num_epochs=1")).folder
    newest = find_latest(folder)
    assert newest is not None
    state = load_checkpoint(newest)
    state["loader"]["version"] = 1
    torch.save(state, newest)
    result, said = output_of(small_spec("train.num_epochs=2"), capsys)
    assert result.metrics["epochs"] == 2
    assert "written by an earlier inkmill" in said


def test_a_damaged_newest_checkpoint_is_named_with_the_way_out(small_spec: MakeSpec) -> None:
    folder = train(small_spec("train.num_epochs=2")).folder
    old, newest = sorted(folder.glob("model_epoch_*.pth"))
    newest.write_bytes(newest.read_bytes()[:1000])
    again = small_spec("train.num_epochs=3", f"train.resume_training_checkpoint_path={old}")
    with pytest.raises(ModelFileError, match=r"it is newer than .*move it away"):
        train(again)
    newest.unlink()
    assert train(again).metrics["epochs"] == 3


def test_a_named_checkpoint_stays_and_the_same_command_resumes_the_new_run(
    small_spec: MakeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(small_spec("train.num_epochs=2", "train.keep_checkpoints=9"))
    old, last = sorted(first.folder.glob("model_epoch_*.pth"))
    with pytest.raises(ConfigError, match=r"model_epoch_002.* is newer than .*model_epoch_001"):
        train(small_spec("train.num_epochs=3", f"train.resume_training_checkpoint_path={old}"))
    last.unlink()
    branch = small_spec(
        "train.num_epochs=4", f"train.resume_training_checkpoint_path={old}", "train.keep_checkpoints=1"
    )
    result, said = output_of(branch, capsys)
    assert f"resuming from {old}" in said
    assert old.is_file(), "it was not the run's to delete"
    branch.train.num_epochs = 5
    again, said = output_of(branch, capsys)
    assert "model_epoch_004" in said, "the same command goes on"
    assert (result.metrics["epochs"], again.metrics["epochs"]) == (4, 5)
    assert find_latest(first.folder) != old


def test_weight_averaging_can_be_switched_when_a_run_resumes(small_spec: MakeSpec) -> None:
    train(small_spec("train.num_epochs=1", "train.model_ema=true"))
    train(small_spec("train.num_epochs=2"))
    history = train(small_spec("train.num_epochs=3", "train.model_ema=true")).metrics["history"]
    assert ["ema_cer" in row for row in history] == [True, False, True]


def test_a_run_that_stopped_early_resumes_only_without_that_limit(
    small_spec: MakeSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["train.num_epochs=8", "train.optim.lr=1e-9"]
    ended = train(small_spec(*settings, "train.early_stop=1")).metrics["epochs"]
    assert ended < 8
    _, said = output_of(small_spec(*settings, "train.early_stop=1"), capsys)
    assert "nothing to do: the last 1 validations brought nothing better, and train.early_stop=1" in said
    assert train(small_spec(*settings)).metrics["epochs"] == 8


def test_names_and_labels_are_printed_as_they_are(
    small_spec: MakeSpec, own_captchas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = own_captchas.with_name("l[draft].tsv")
    lines = own_captchas.read_text("utf-8").splitlines()
    labels.write_text("\n".join([*lines[1:], f"{lines[0].partition(chr(9))[0]}\t[/b]"]) + "\n", "utf-8")
    own_captchas.unlink()
    (labels.parent.parent / "digits.txt").write_text("\n".join("0123456789"), "utf-8")
    characters = f"dataset.character_list_file={labels.parent.parent / 'digits.txt'}"
    _, said = output_of(small_spec(f"dataset.train={labels}", characters, "train.num_epochs=1"), capsys)
    assert "l[draft].tsv" in said
    assert "'[/b]'" in said


def test_caching_on_a_gpu_that_is_not_there_is_refused(small_spec: MakeSpec) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.cache=gpu, and there is no GPU here"):
        train(small_spec("dataset.cache=gpu"))
