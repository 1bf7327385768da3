"""The plan, tried: what becomes of plans that do not run, and of those that are not faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from inkmill.diagnose.facts import Facts, Settings, Stages, Step
from inkmill.diagnose.plan import Plan
from inkmill.diagnose.prove import prove
from inkmill.diagnose.windows import Interval, exactly
from inkmill.errors import ConfigError, DataError

OutOfMemoryError = pytest.importorskip("torch").OutOfMemoryError

FEW_CORES = Facts(
    Stages(3e-6, 50e-6, 15e-6, draw=5e-6, augment=100e-6, other=5e-6, cached=1e-6, augment_gpu=1e-6),
    (Step(256, "fp32", False, True, 1e-5, 1e-6), Step(512, "bf16", False, True, 5e-6, 1e-6)),
    on_gpu=True,
    cores=2,
    samples=10**9,
    dali={"mixed": 60_000.0},
)
NOW = Settings(workers=2, batch_size=256)


def test_a_plan_that_does_not_run_makes_room_for_the_next_best() -> None:
    tried: list[Settings] = []

    def trial(plan: Plan) -> Interval:
        tried.append(plan.best.settings)
        if plan.best.settings.loader == "dali":
            raise ConfigError("no DALI today")
        return exactly(plan.best.images_per_s)

    found = prove(NOW, FEW_CORES, exactly(5000.0), trial)
    assert tried[0].loader == "dali"
    assert found.plan.best.settings == tried[-1]
    assert found.plan.best.settings.loader == found.auto.best.settings.loader == "workers"
    assert found.measured == exactly(found.plan.best.images_per_s)
    assert "dataset.loader=dali" in found.notes[0]
    assert found.notes[0].endswith("does not run here: no DALI today")


def test_an_error_of_any_kind_costs_the_plan_and_not_the_diagnosis() -> None:
    def trial(plan: Plan) -> Interval:
        if plan.best.settings.loader == "dali":
            raise RuntimeError("a compiler's\npage\nof text")
        return exactly(plan.best.images_per_s)

    found = prove(NOW, FEW_CORES, exactly(5000.0), trial)
    assert found.plan.best.settings.loader == "workers"
    assert found.notes[0].endswith("does not run here: a compiler's")


def test_workers_that_wait_for_the_disk_are_doubled_as_long_as_that_is_faster() -> None:
    cold = replace(FEW_CORES, dali={}, stages=replace(FEW_CORES.stages, wait=3e-5), page_cached=False)
    tried: list[int] = []

    def grows(plan: Plan) -> Interval:
        tried.append(plan.best.settings.workers)
        assert f"2 cores can feed {tried[-1]} processes" in plan.why
        return exactly(1500.0 * min(8, plan.best.settings.workers))

    found = prove(NOW, cold, exactly(1000.0), grows, lambda: True)
    assert tried == [4, 8, 16]
    assert found.plan.best.settings.workers == found.auto.best.settings.workers == 8
    assert found.measured == exactly(12000.0)
    assert found.notes == ()

    def too_many(plan: Plan) -> Interval:
        if plan.best.settings.workers > 4:
            raise DataError("no memory\nleft")
        return exactly(6000.0)

    four = prove(NOW, cold, exactly(1000.0), too_many, lambda: True)
    assert four.plan.best.settings.workers == 4
    assert four.notes == ("dataset.workers=8 does not run here: no memory",)

    for facts, time_left in ((cold, False), (replace(cold, page_cached=True), True)):
        tried.clear()
        prove(NOW, facts, exactly(1000.0), grows, lambda time_left=time_left: time_left)
        assert len(tried) == 1


def test_where_nothing_runs_the_settings_stay() -> None:
    def trial(plan: Plan) -> Interval:
        raise ConfigError("not today")

    found = prove(NOW, FEW_CORES, exactly(5000.0), trial)
    assert found.plan.best is found.plan.current
    assert found.measured == exactly(5000.0)
    assert len(found.notes) == len(set(found.notes)) > 1


def test_a_step_that_is_too_large_is_not_tried_with_other_pictures() -> None:
    tried: list[int] = []

    def trial(plan: Plan) -> Interval:
        tried.append(plan.best.settings.batch_size)
        if plan.best.settings.batch_size == 512:
            raise OutOfMemoryError("too large")
        return exactly(plan.best.images_per_s)

    many = replace(FEW_CORES, cores=64, dali={})
    found = prove(NOW, many, exactly(5000.0), trial)
    assert tried == [512, 256]
    assert found.plan.best.settings.batch_size == 256


def test_a_plan_that_is_not_faster_is_taken_back() -> None:
    found = prove(NOW, FEW_CORES, exactly(5000.0), lambda plan: exactly(4000.0))
    assert found.plan.best is found.plan.current
    assert found.auto.best is found.auto.current
    assert found.plan.change == {}
    assert found.measured == exactly(5000.0)
    assert "it made 4,000 images/s, and the settings as they are make 5,000" in found.notes[0]


def test_settings_that_are_good_are_tried_as_they_are() -> None:
    good = replace(FEW_CORES, cores=64, steps=FEW_CORES.steps[:1], dali={})
    current = Settings(workers=64, batch_size=256)
    found = prove(current, good, exactly(5000.0), lambda plan: exactly(4000.0))
    assert found.plan.best is found.plan.current
    assert found.measured == exactly(4000.0)
    assert found.notes == ()
