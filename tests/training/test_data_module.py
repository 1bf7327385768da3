"""The data module in a real Lightning Trainer, and the loaders in a plain loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from inkmill.config.load import load_spec
from inkmill.data.loaders.dali import has_dali
from inkmill.data.pipeline.resize import Resize
from inkmill.errors import ConfigError, DataError
from inkmill.training.data_module import TaskDataModule, TextDataModule
from inkmill.training.tensor_loader import TaskBatch, TextBatch

DOCS = Path(__file__).parents[2] / "docs" / "loaders.md"
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated")


class TinyReader(pl.LightningModule):
    """Anyone's model: a convolution, the mean over the height, CTC. It writes down what it saw."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, (2, 2), 1), nn.ReLU(), nn.Conv2d(8, classes, 3, (2, 1), 1))
        self.seen: list[tuple[int, list[str]]] = []
        self.validated: list[str] = []

    def training_step(self, batch: TextBatch, number: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch.keys))
        logits = self.net(batch.images).mean(2).permute(2, 0, 1).log_softmax(2)
        steps = torch.full((len(batch.keys),), len(logits))
        return nn.functional.ctc_loss(logits, batch.targets, steps, batch.lengths, zero_infinity=True)

    def validation_step(self, batch: TextBatch, number: int) -> None:
        self.validated += batch.keys

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)

    def epoch(self, number: int) -> list[str]:
        return [key for epoch, keys in self.seen if epoch == number for key in keys]


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(accelerator="cpu", enable_model_summary=False, **(quiet | options))


@pytest.fixture
def data(few_captchas: Path) -> Iterator[TextDataModule]:
    module = TextDataModule(
        few_captchas, resize=Resize(32, 64, 3, "pad"), augmentation="captcha", num_workers=0, seed=4
    )
    yield module
    module.teardown()


def test_batches_are_ready_for_a_model(data: TextDataModule) -> None:
    batch = next(iter(data.train_dataloader()))
    assert isinstance(batch, TextBatch)
    assert (batch.images.shape, batch.images.dtype) == ((20, 3, 32, 64), torch.float32)
    assert -1 <= batch.images.min() < batch.images.max() <= 1
    assert (batch.targets.dtype, batch.lengths.dtype) == (torch.int64, torch.int64)
    assert batch.lengths.tolist() == [len(text) for text in batch.texts]
    names = data.codec.class_names
    assert ["".join(names[i] for i in row[:4]) for row in batch.targets.tolist()] == batch.texts


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trainer_sees_every_sample_once_an_epoch_in_another_order(few_captchas: Path, workers: int) -> None:
    data = TextDataModule(few_captchas, resize=Resize(32, 64, 3, "pad"), num_workers=workers)
    model = TinyReader(data.codec.num_classes)
    trainer(max_epochs=2).fit(model, datamodule=data)
    first, second = model.epoch(0), model.epoch(1)
    assert first != second
    assert sorted(first) == sorted(second)
    held = set(model.validated)
    assert len(set(first)) + len(held) == 120
    assert not held & set(first)
    assert not data._loaders


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
def test_any_checkpoint_of_a_trainer_goes_on_with_the_batches_that_are_left(
    data: TextDataModule, tmp_path: Path
) -> None:
    every_step = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    whole = TinyReader(data.codec.num_classes)
    options = {"max_epochs": 2, "num_sanity_val_steps": 0}
    trainer(**options, enable_checkpointing=True, callbacks=[every_step]).fit(whole, datamodule=data)
    assert len(whole.seen) == 12
    for step in (2, 6, 11):  # in the middle of an epoch, at its end, before the last batch
        rest = TinyReader(data.codec.num_classes)
        trainer(**options).fit(rest, datamodule=data, ckpt_path=tmp_path / f"step={step}.ckpt")
        assert rest.seen == whole.seen[step:]


def test_a_run_stopped_by_max_steps_goes_on_with_the_next_epoch(data: TextDataModule, tmp_path: Path) -> None:
    whole, first, rest = (TinyReader(data.codec.num_classes) for _ in range(3))
    trainer(max_epochs=2).fit(whole, datamodule=data)
    stopped = trainer(max_steps=2)
    stopped.fit(first, datamodule=data)
    stopped.save_checkpoint(tmp_path / "two.ckpt")  # Lightning counts the epoch as done
    trainer(max_epochs=2).fit(rest, datamodule=data, ckpt_path=tmp_path / "two.ckpt")
    assert rest.seen == [(1, keys) for epoch, keys in whole.seen if epoch == 1]


def test_without_dali_or_gpu_one_line_says_what_loads_instead(few_captchas: Path) -> None:
    plain = TextDataModule(few_captchas, num_workers=0)
    data = TextDataModule(few_captchas, num_workers=0, use_dali=True)
    batches, expected = (list(module.train_dataloader()) for module in (data, plain))
    assert [batch.keys for batch in batches] == [batch.keys for batch in expected]
    data.val_dataloader()
    (said,) = [note for note in data.notes if note.startswith("use_dali")]
    assert re.fullmatch(r"use_dali: .*(the CPU|pip install 'inkmill\[dali-cuda1\d\]'.*), so 0 worker .*", said)


@pytest.mark.gpu
@pytest.mark.dali
@pytest.mark.skipif(not (torch.cuda.is_available() and has_dali()), reason="needs DALI and a GPU")
def test_with_a_gpu_dali_loads_the_same_samples(few_captchas: Path) -> None:
    data = TextDataModule(few_captchas, use_dali=True, augmentation="captcha")
    model = TinyReader(data.codec.num_classes)
    pl.Trainer(accelerator="gpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False).fit(model, data)
    assert len(model.epoch(0)) == 108
    assert sorted(model.epoch(0)) == sorted(model.epoch(1))
    assert not any(note.startswith("use_dali") for note in data.notes)


def test_labels_that_cannot_be_encoded_are_left_out_and_noted(few_captchas: Path) -> None:
    data = TextDataModule(few_captchas, few_captchas, charset=few_charset(few_captchas), num_workers=0)
    texts = [text for batch in data.train_dataloader() for text in batch.texts]
    assert texts
    assert all("9" not in text for text in texts)
    assert any(f"{120 - len(texts)} labels left out: out of charset" in note for note in data.notes)
    with pytest.raises(DataError, match="none of its 108 labels can be encoded"):
        TextDataModule(few_captchas, max_label_length=3).setup()


def few_charset(few_captchas: Path) -> Path:
    file = few_captchas.parent / "no_nine.txt"
    file.write_text("\n".join("012345678"), "utf-8")
    return file


def test_the_plain_loop_of_the_docs_runs(few_captchas: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.S) if "ctc" in code]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").symlink_to(few_captchas.parent)
    found: dict[str, Any] = {}
    exec(compile(block.replace('"words/"', '"words/few.tsv"'), str(DOCS), "exec"), found)
    assert found["epoch"] == 1
    assert torch.isfinite(found["loss"])
    assert found["loader"].stats.images == 2 * 120


class TinyClassifier(pl.LightningModule):
    """Anyone's classifier; it writes down what it saw."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))
        self.seen: list[str] = []
        self.validated: list[str] = []

    def training_step(self, batch: TaskBatch, number: int) -> torch.Tensor:
        self.seen += batch.keys
        (labels,) = batch.targets
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch.images), labels)

    def validation_step(self, batch: TaskBatch, number: int) -> None:
        self.validated += batch.keys

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


@pytest.mark.parametrize("cache", ["none", "ram"])
def test_any_task_of_a_spec_trains_in_anyones_lightning_loop(few_captchas: Path, tmp_path: Path, cache: str) -> None:
    rows = [line.split("\t") for line in few_captchas.read_text("utf-8").splitlines()]
    labels = few_captchas.with_suffix(".ssv")
    labels.write_text("".join(f"{name} {' '.join(sorted(set(text)))}\n" for name, text in rows), "utf-8")
    settings = ["task=multilabel", f"dataset.train={labels}", "dataset.workers=0", f"dataset.cache={cache}"]
    data = TaskDataModule(
        load_spec(None, [*settings, "dataset.batch_size=16", "train.seed=3", "model.input_channel=3"])
    )
    model = TinyClassifier(len(data.task.class_names))
    trainer(max_epochs=1).fit(model, datamodule=data)
    assert len(set(model.seen)) == len(model.seen) == 108
    assert not set(model.seen) & set(model.validated)
    (batch, *_) = data.val_dataloader()
    assert batch.targets[0].tolist() == [truth.tolist() for truth in batch.truths]
    assert any("12 samples are held out" in note for note in data.notes)
    data.teardown()


def test_a_task_data_module_without_data_or_seed_says_so(few_captchas: Path) -> None:
    with pytest.raises(ConfigError, match=r"set dataset\.train"):
        TaskDataModule(load_spec(None, ["task=classification"])).setup()
    with pytest.raises(ConfigError, match=r"train\.seed=-1"):
        TaskDataModule(load_spec(None, [f"dataset.train={few_captchas}", "train.seed=-1"])).setup()


def test_synthetic_text_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="inkmill synth FOLDER"):
        TaskDataModule(load_spec(None, ["dataset.synthetic.share=0.5"]))
