"""The plan, tried: what becomes of plans that do not run, and of those that are not faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from inkmill.diagnose.validate_plan import validate_plan
from inkmill.errors import ConfigError
from inkmill.perf.plan import TuningPlan
from inkmill.perf.predict import Facts, ImageCost, Settings, StepCost
from inkmill.perf.stats import Interval, exactly

OutOfMemoryError = pytest.importorskip("torch").OutOfMemoryError

FEW_CORES = Facts(
    ImageCost(3e-6, 50e-6, 15e-6, augment=105e-6, other=5e-6, cached=1e-6, augment_gpu=1e-6),
    (StepCost(256, "fp32", False, True, 1e-5, 1e-6), StepCost(512, "bf16", False, True, 5e-6, 1e-6)),
    on_gpu=True,
    cores=2,
    samples=10**9,
    rates={("dali", (("decode_on", "mixed"),)): 60_000.0},
)
NOW = Settings(workers=2, batch_size=256)


def test_a_plan_that_does_not_run_makes_room_for_the_next_best() -> None:
    tried: list[Settings] = []

    def trial(plan: TuningPlan) -> Interval:
        tried.append(plan.best.settings)
        if plan.best.settings.loader == "dali":
            raise ConfigError("no DALI today")
        return exactly(plan.best.images_per_s)

    found = validate_plan(NOW, FEW_CORES, exactly(5000.0), trial)
    assert tried[0].loader == "dali"
    assert found.plan.best.settings == tried[-1]
    assert found.plan.best.settings.loader == found.auto.best.settings.loader == "workers"
    assert found.measured == exactly(found.plan.best.images_per_s)
    assert "dataset.loader=dali" in found.notes[0]
    assert found.notes[0].endswith("does not run here: no DALI today")


def test_an_error_of_any_kind_costs_the_plan_and_not_the_diagnosis() -> None:
    def trial(plan: TuningPlan) -> Interval:
        if plan.best.settings.loader == "dali":
            raise RuntimeError("a compiler's\npage\nof text")
        return exactly(plan.best.images_per_s)

    found = validate_plan(NOW, FEW_CORES, exactly(5000.0), trial)
    assert found.plan.best.settings.loader == "workers"
    assert found.notes[0].endswith("does not run here: a compiler's")


def test_where_nothing_runs_the_settings_stay() -> None:
    def trial(plan: TuningPlan) -> Interval:
        raise ConfigError("not today")

    found = validate_plan(NOW, FEW_CORES, exactly(5000.0), trial)
    assert found.plan.best is found.plan.current
    assert found.measured == exactly(5000.0)
    assert len(found.notes) == len(set(found.notes)) > 1


def test_a_step_that_is_too_large_is_not_tried_with_other_pictures() -> None:
    tried: list[int] = []

    def trial(plan: TuningPlan) -> Interval:
        tried.append(plan.best.settings.batch_size)
        if plan.best.settings.batch_size == 512:
            raise OutOfMemoryError("too large")
        return exactly(plan.best.images_per_s)

    many = replace(FEW_CORES, cores=64, rates={})
    found = validate_plan(NOW, many, exactly(5000.0), trial)
    assert tried == [512, 256]
    assert found.plan.best.settings.batch_size == 256


def test_a_plan_that_is_not_faster_is_taken_back() -> None:
    found = validate_plan(NOW, FEW_CORES, exactly(5000.0), lambda plan: exactly(4000.0))
    assert found.plan.best is found.plan.current
    assert found.auto.best is found.auto.current
    assert found.plan.change == {}
    assert found.measured == exactly(5000.0)
    assert "it made 4,000 images/s, and the settings as they are make 5,000" in found.notes[0]


def test_settings_that_are_good_need_no_trial() -> None:
    good = replace(FEW_CORES, cores=64, steps=FEW_CORES.steps[:1], rates={})
    found = validate_plan(Settings(workers=64, batch_size=256), good, exactly(5000.0), lambda plan: exactly(4000.0))
    assert found.plan.best is found.plan.current
    assert (found.measured, found.tried, found.notes) == (exactly(5000.0), False, ())


def test_a_plan_without_time_for_a_trial_stands_and_auto_does_not_take_it() -> None:
    found = validate_plan(NOW, FEW_CORES, exactly(5000.0), lambda plan: None)
    assert found.plan.change
    assert found.auto.best is found.auto.current
    assert (found.measured, found.tried) == (exactly(5000.0), False)
