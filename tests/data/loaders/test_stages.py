"""What making batches took, by stage: planted slowness shows up under its name, from each loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from captcha_source import SlowPipeline, SlowSource

from inkmill import shared_memory as shared
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch
from inkmill.data.loaders.plan import STAGES, StageClock, add
from inkmill.data.pipeline.cache import CacheConfig

Undisturbed = Callable[[Callable[[], bool]], bool]


def dominates(stages: dict[str, float], stage: str) -> bool:
    return stages[stage] > 3 * sum(seconds for name, seconds in stages.items() if name != stage)


def slow_source(captchas: Path, count: int) -> SlowSource:
    return replace(SlowSource.first(captchas, count), pause_s=0.01)


@pytest.mark.parametrize(("rows", "every"), [(40, 16), (16, 16), (5, 5), (1, 1)])
def test_each_row_is_clocked_in_one_batch_of_sixteen_and_in_each_batch_one(rows: int, every: int) -> None:
    counts = np.zeros(rows, int)
    for number in range(2 * every):
        clock = StageClock(number)
        with clock.samples(rows) as clocks:
            assert len(clocks) == rows
            assert clock in clocks
            counts += [one is clock for one in clocks]
    assert set(counts) == {2}
    with StageClock(3).samples(0) as none:
        assert none == []


def test_the_stages_are_the_whole_time_of_the_batch() -> None:
    clock = StageClock(0)
    with clock.whole("cache"):
        pass
    with clock.samples(20):
        clock.start()
        clock.lap("decode")
        clock.lap("resize")
    seconds = clock.seconds()
    assert tuple(seconds) == STAGES
    assert 0 < sum(seconds.values()) < 1
    assert min(seconds[stage] for stage in ("cache", "decode", "resize", "other")) > 0 == seconds["read"]
    total: dict[str, float] = {}
    add(total, seconds)
    add(total, seconds)
    assert total == {stage: 2 * some for stage, some in seconds.items()}


@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (1, "workers")])
def test_a_slow_disk_is_reading(
    captchas: Path,
    captcha_plan: Callable[..., LoadPlan],
    workers: int,
    kind: str,
    undisturbed: Undisturbed,
) -> None:
    def reading() -> bool:
        plan = LoadPlan(slow_source(captchas, 48), captcha_plan().resize, batch_size=16)
        with make_loader(plan, workers, kind) as loader:
            assert loader.workers == workers
            list(loader)
            return dominates(loader.stats.stages, "read")

    assert undisturbed(reading)


def test_slow_augmentation_is_named(captcha_plan: Callable[..., LoadPlan], undisturbed: Undisturbed) -> None:
    def augmenting() -> bool:
        loader = make_loader(captcha_plan(batch_size=16, augmentation=SlowPipeline()))
        list(loader)
        return dominates(loader.stats.stages, "augment")

    assert undisturbed(augmenting)


def test_kept_pictures_are_neither_read_nor_decoded(captcha_plan: Callable[..., LoadPlan]) -> None:
    loader = make_loader(captcha_plan(64, batch_size=16, cache=CacheConfig("ram")))
    list(loader)
    first = dict(loader.stats.stages)
    assert min(first["read"], first["decode"], first["resize"], first["cache"]) > 0
    list(loader)
    assert all(loader.stats.stages[stage] == first[stage] for stage in ("read", "decode", "resize"))
    assert loader.stats.stages["cache"] > first["cache"]


def test_stages_travel_with_the_batch(captcha_plan: Callable[..., LoadPlan]) -> None:
    plan = captcha_plan()
    buffer = np.empty(plan.batch_bytes, np.uint8)
    made = BatchAssembler(plan, None, np.zeros(len(plan.source), np.uint8)).make(0, 2, buffer)
    assert CollatedBatch.unpack(made.pack(), buffer).stages == made.stages


@pytest.mark.parametrize("fallback", [False, True])
def test_staging_for_dali_is_clocked(
    captchas: Path, captcha_plan: Callable[..., LoadPlan], fallback: bool, undisturbed: Undisturbed
) -> None:
    from inkmill.data.loaders.dali.staging import BatchStager

    plan = LoadPlan(slow_source(captchas, 16), captcha_plan().resize, batch_size=16)
    stager = BatchStager(plan, None, shared.allocate(16))

    def reading() -> bool:
        staged = stager.stage(0, 0, fallback, np.empty(plan.batch_bytes, np.uint8))
        assert staged.collated is not None
        return dominates(staged.collated.stages, "read")

    assert undisturbed(reading)
