"""The loaders of a run follow its spec."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import open_source
from inkmill.errors import ConfigError
from inkmill.tasks.model import to_input
from inkmill.training.batches import open_loaders
from inkmill.training.prepare import prepare


def test_a_sample_that_goes_bad_after_the_check_is_quarantined_among_the_results(
    few_captchas: Path, tmp_path: Path
) -> None:
    lines = few_captchas.read_text("utf-8").splitlines()[:40]
    (tmp_path / "set" / "images").mkdir(parents=True)
    (tmp_path / "set" / "labels.tsv").write_text("\n".join(lines), "utf-8")
    for line in lines:
        name = line.split("\t")[0]
        shutil.copy(few_captchas.parent / name, tmp_path / "set" / name)
    settings = ["dataset.workers=0", "dataset.batch_size=8", "dataset.on_bad_sample=quarantine", "train.device=cpu"]
    spec = load_spec(None, [f"dataset.train={tmp_path / 'set'}", f"results_dir={tmp_path / 'results'}", *settings])
    prepared = prepare(spec, tmp_path / "check", lambda line: None)
    key = prepared.train.source.key(3)
    (tmp_path / "set" / key).write_bytes(b"not an image any more")
    fabric = Fabric(accelerator="cpu", devices=1)
    with open_loaders(spec, prepared, fabric, seed=0) as (train, _):
        assert sum(len(batch) for batch in train) == len(prepared.train.source) - 1
        assert train.stats.bad_samples == 1
    noted = (tmp_path / "results" / "train" / "quarantine" / "rejects.tsv").read_text("utf-8")
    assert noted.startswith(f"{key}\t")


def test_a_spec_that_names_an_albumentations_pipeline_loads_with_it(few_captchas: Path, tmp_path: Path) -> None:
    pytest.importorskip("albumentations")
    file = tmp_path / "pipeline.json"
    file.write_text(json.dumps({"transform": {"__class_fullname__": "InvertImg", "p": 1.0}}), "utf-8")
    fabric = Fabric(accelerator="cpu", devices=1)
    shown = []
    for changes in ([], [f"dataset.augmentation.albumentations={file}"]):
        settings = [f"dataset.train={few_captchas}", "dataset.workers=0", "train.device=cpu", *changes]
        spec = load_spec(None, [*settings, f"results_dir={tmp_path / 'results'}"])
        with open_loaders(spec, prepare(spec, tmp_path / "check", lambda line: None), fabric, seed=0) as (train, _):
            shown.append(next(iter(train)))
    assert shown[0].keys == shown[1].keys
    assert (shown[0].images == 255 - shown[1].images).all()


@pytest.mark.dali
def test_dalis_reader_reads_the_training_shards_of_a_spec(few_captchas: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    convert(open_source(SourceSpec(path=str(few_captchas))), tmp_path / "shards", "shards", shard_size=50)
    settings = ["dataset.loader=dali", "dataset.dali_reader=dali", "dataset.workers=1", "train.device=cpu"]
    spec = load_spec(None, [f"dataset.train={tmp_path / 'shards'}", f"results_dir={tmp_path / 'results'}", *settings])
    prepared = prepare(spec, tmp_path / "check", lambda line: None)
    fabric = Fabric(accelerator="cpu", devices=1)
    with open_loaders(spec, prepared, fabric, seed=0) as (train, val):
        assert "DALI's reader" in train.state_dict()["shuffle"]
        assert sorted(i for batch in train for i in batch.index) == list(range(len(prepared.train.source)))
        assert all(sum(map(len, loader)) == len(loader.plan.source) for loader in val.values())


@pytest.mark.parametrize("setting", ["dali_reader=dali", "augment_on=dali", "decode_on=mixed"])
def test_what_only_dali_takes_is_refused_with_other_loaders(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} needs loader=dali, not loader=auto"):
        load_spec(None, [f"dataset.{setting}"])


@pytest.mark.dali
def test_dali_loads_several_sets_of_free_width(few_captchas: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    sets = f"dataset.train=[{few_captchas}, {{path: {few_captchas}, weight: 0.5}}]"
    settings = ["dataset.loader=dali", "dataset.workers=1", "train.device=cpu", "model.input_resize=height"]
    spec = load_spec(None, [sets, f"results_dir={tmp_path / 'results'}", *settings, "dataset.batch_size=8"])
    prepared = prepare(spec, tmp_path / "check", lambda line: None)
    with open_loaders(spec, prepared, Fabric(accelerator="cpu", devices=1), seed=0) as (train, _):
        assert sum(len(batch) for batch in train) == len(prepared.train.source)
        assert train.stats.bad_samples == 0


def test_bytes_become_numbers_from_minus_one_to_one_and_stay_channels_last() -> None:
    images = torch.arange(256, dtype=torch.uint8).reshape(2, 8, 4, 4)[..., :3].contiguous()
    given = to_input(images)
    assert given.dtype == torch.float32
    assert torch.equal(given, (images.permute(0, 3, 1, 2).float() - 127.5) / 127.5)
    assert given.is_contiguous(memory_format=torch.channels_last)
    assert (to_input(torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 2, 1)).flatten()).tolist() == [-1.0, 1.0]
