from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inkmill.config.dataset import DatasetSpec, SourceSpec
from inkmill.data.augment import open_augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Subset, open_source
from inkmill.perf.advice import Waiting
from inkmill.perf.loading_facts import CoresAtWork, loading_of, machine_for, watch_loader


@pytest.fixture
def plan(few_captchas: Path) -> LoadPlan:
    return LoadPlan(open_source(SourceSpec(path=str(few_captchas))), Resize(32, 64, 3))


def test_how_a_run_loads(plan: LoadPlan) -> None:
    dataset = DatasetSpec.model_validate({"augmentation": {"aug_prob": 1.0}})
    augmented = replace(plan, augmentation=open_augmentation(dataset.augmentation))
    loading = loading_of(DeviceLoader(make_loader(augmented, 3), "cpu"), dataset, 2)
    assert (loading.who, loading.makers, loading.cache, loading.ranks) == ("workers", 3, "none", 2)
    assert loading.store_bytes >= len(plan.source) * 32 * 64 * 3
    assert (loading.makers_augment, loading.gpu_can_augment, loading.small_files) == (True, False, True)
    elsewhere = loading_of(DeviceLoader(make_loader(augmented, augment_on="gpu"), "cpu"), dataset, 1)
    assert (elsewhere.makers, elsewhere.makers_augment) == (0, False)


def test_samples_of_one_file_are_no_small_files(plan: LoadPlan) -> None:
    one = replace(plan, source=Subset(plan.source, [3] * 40))
    assert not loading_of(DeviceLoader(make_loader(one), "cpu"), DatasetSpec(), 1).small_files


def test_what_the_machine_has_left(plan: LoadPlan, tmp_path: Path) -> None:
    dataset = DatasetSpec(cache_dir=str(tmp_path / "not" / "there" / "yet"))
    loading = loading_of(DeviceLoader(make_loader(plan), "cpu"), dataset, 1)
    cpu = torch.device("cpu")
    quiet, busy = (machine_for(loading, cpu, dataset, cores) for cores in (0.0, 1e6))
    assert quiet.cores == busy.cores >= 1
    assert quiet.idle_cores == quiet.cores - 1
    assert busy.idle_cores == 0
    assert min(quiet.ram, quiet.disk) > 0 == quiet.gpu
    assert machine_for(replace(loading, ranks=4), cpu, dataset, 0.0).cores == max(1, quiet.cores // 4)


def test_cores_at_work_are_those_that_work() -> None:
    at_work = CoresAtWork()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        sum(range(1000))
    assert at_work.since_last() > 0.2


def test_the_watch_of_a_loader_gives_advice_for_it(plan: LoadPlan) -> None:
    watch = watch_loader(DeviceLoader(make_loader(plan), "cpu"), DatasetSpec(), 1)
    watch.epoch_starts(0.0)
    assert watch.look(1000.0) is None
    assert watch._advise(Waiting(0.5, 1.0, 0.0, {"decode": 1.0})).cause == "decode"
