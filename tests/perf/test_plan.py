from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.perf.plan import candidates, make_plan
from inkmill.perf.predict import Facts, ImageCost, Settings, StepCost, predict

cost = st.floats(1e-7, 1e-2)
MIXED, CPU = (("dali", (("decode_on", place),)) for place in ("mixed", "cpu"))
none_or_cost = st.one_of(st.just(0.0), cost)


@st.composite
def facts(draw: Any, **fixed: Any) -> Facts:
    on_gpu = draw(st.booleans())
    seconds = draw(st.floats(1e-6, 1e-2))
    stages = ImageCost(
        *(draw(cost) for _ in range(3)),
        augment=draw(none_or_cost),
        other=draw(cost),
        cached=draw(st.floats(0, 1e-6)),
        disk_wait=draw(none_or_cost),
        disk_cpu=draw(none_or_cost),
        augment_gpu=draw(cost) if on_gpu else None,
        ragged=draw(st.none() | st.floats(0, 1e-6)) if on_gpu else None,
    )
    values = {
        "costs": stages,
        "steps": (StepCost(32, "fp32", False, True, seconds, draw(cost) if on_gpu else seconds),),
        "on_gpu": on_gpu,
        "cores": draw(st.integers(1, 64)),
        "samples": draw(st.integers(1, 10**8)),
        "epochs": draw(st.integers(1, 100)),
        "cache_bytes": draw(st.integers(1, 10**13)),
        "room": {
            "ram": draw(st.integers(0, 2**37)),
            "disk": draw(st.integers(0, 2**40)),
            "gpu": draw(st.integers(0, 2**37)) if on_gpu else 0,
        },
        "gpu_can_augment": on_gpu,
        "efficiency": draw(st.floats(0.2, 1)),
        "rates": {MIXED: draw(st.floats(1, 1e5))} if on_gpu and draw(st.booleans()) else {},
    }
    return Facts(**(values | fixed))


def settings_of(some: Facts) -> st.SearchStrategy[Settings]:
    return st.sampled_from(list(candidates(Settings(), some)))


@given(st.data())
def test_better_machines_are_never_predicted_slower(data: st.DataObject) -> None:
    some = data.draw(facts())
    settings = data.draw(settings_of(some))
    now = predict(settings, some)
    step = some.steps[0]
    better = [
        replace(some, efficiency=1.0),
        replace(some, room={tier: 2 * room for tier, room in some.room.items()}),
        replace(some, steps=(replace(step, seconds=step.seconds / 2),)),
        replace(some, costs=replace(some.costs, disk_wait=some.costs.disk_wait / 2, decode=some.costs.decode / 2)),
        replace(some, costs=replace(some.costs, augment=some.costs.augment / 2)),
    ]
    if settings.cache == "none" or some.costs.cached <= some.costs.fresh:
        for one in better:
            then = predict(settings, one)
            assert then.images_per_s >= now.images_per_s * (1 - 1e-9)
            assert then.of_run >= now.of_run * (1 - 1e-9)


@given(st.data(), st.integers(1, 64))
def test_more_cores_never_predict_less(data: st.DataObject, more: int) -> None:
    some = data.draw(facts(efficiency=1.0))
    settings = data.draw(settings_of(some))
    richer = replace(some, cores=some.cores + more)
    assert predict(settings, richer).of_run >= predict(settings, some).of_run * (1 - 1e-9)
    assert make_plan(Settings(), richer).best.of_run >= make_plan(Settings(), some).best.of_run * 0.97


@given(facts())
def test_nothing_is_predicted_faster_than_the_step(some: Facts) -> None:
    for settings in candidates(Settings(), some):
        assert predict(settings, some).images_per_s <= 1 / some.steps[0].seconds * (1 + 1e-9)


@given(facts())
def test_the_plan_is_within_a_hair_of_the_fastest_candidate_and_never_below_the_users(some: Facts) -> None:
    plan = make_plan(Settings(), some)
    fastest = max(predict(one, some).of_run for one in candidates(Settings(), some))
    assert plan.best.of_run >= fastest * 0.97 / 1.03 * (1 - 1e-9)
    assert plan.gain >= 1
    assert plan.why


@given(facts())
def test_one_change_is_one_key_if_any_one_helps(some: Facts) -> None:
    plan = make_plan(Settings(), some)
    single = [
        one for one in candidates(Settings(), some) if len({*one.overrides(Settings())} - {"dataset.cache_gib"}) == 1
    ]
    helps = any(predict(one, some).of_run > plan.current.of_run * 1.03 for one in single)
    assert not helps or len({*plan.change} - {"dataset.cache_gib"}) == 1
    assert (plan.change_gain > 1) == bool(plan.change)


@given(facts())
def test_only_what_fits_is_kept(some: Facts) -> None:
    for one in candidates(Settings(), some):
        assert one.cache == "none" or some.epochs > 1
        assert one.cache != "gpu" or some.cache_bytes <= some.room["gpu"]


WORDS = Facts(
    ImageCost(3e-6, 50e-6, 15e-6, augment=805e-6, other=5e-6, cached=1e-6, augment_gpu=6e-6),
    (StepCost(256, "bf16", False, True, 1 / 50_000, 1 / 80_000),),
    on_gpu=True,
    cores=16,
    samples=10**9,
    cache_bytes=9600 * 10**9,
    room={"ram": 2**36, "gpu": 2**36},
)
FITS = {"samples": 10**6, "cache_bytes": 9600 * 10**6}
NOW = Settings(batch_size=256, precision="bf16")


def test_one_slow_worker_is_answered_with_more_of_them() -> None:
    plan = make_plan(replace(NOW, workers=1, augment_on="gpu"), WORDS)
    assert list(plan.change) == ["dataset.workers"]
    assert 4 <= plan.best.settings.workers <= 8


def test_augmentation_that_the_cores_cannot_do_goes_to_the_gpu() -> None:
    plan = make_plan(replace(NOW, workers=4, augment_on="cpu"), replace(WORDS, cores=4))
    assert plan.best.settings.augment_on == "gpu"
    assert "augmenting costs a core 805 us" in plan.why


def test_a_set_that_fits_is_kept_where_cores_are_few() -> None:
    plan = make_plan(replace(NOW, workers=2, augment_on="gpu"), replace(WORDS, cores=2, **FITS))
    assert plan.best.settings.cache in ("ram", "gpu")
    assert "the set fits" in plan.why
    assert make_plan(NOW, replace(WORDS, cores=2, **FITS, epochs=1)).best.settings.cache == "none"


def test_a_gpu_that_decodes_relieves_few_cores_when_nothing_can_be_kept() -> None:
    few = replace(WORDS, cores=2, rates={CPU: 12_000.0, MIXED: 40_000.0})
    best = make_plan(replace(NOW, workers=2, augment_on="gpu"), few).best.settings
    assert (best.loader, best.options) == MIXED
    assert make_plan(replace(NOW, augment_on="gpu"), replace(few, cores=16)).best.settings.loader == "workers"


def test_workers_that_wait_for_the_disk_may_outnumber_the_cores() -> None:
    slow = replace(WORDS, cores=4, costs=replace(WORDS.costs, disk_wait=2e-3))
    assert make_plan(replace(NOW, augment_on="gpu"), slow).best.settings.workers == 32
    usual = replace(WORDS, cores=4, costs=replace(WORDS.costs, disk_wait=5e-5))
    assert make_plan(replace(NOW, augment_on="gpu"), usual).best.settings.workers == 8
    assert make_plan(replace(NOW, augment_on="gpu"), replace(WORDS, cores=4)).best.settings.workers == 4


def test_what_fetching_takes_of_the_cores_is_not_hidden_by_more_workers() -> None:
    few = replace(WORDS, cores=2, rates={CPU: 1e4}, costs=replace(WORDS.costs, augment=0.0, disk_wait=1e-5))
    fetching = replace(few, costs=replace(few.costs, disk_cpu=78e-6))
    settings = replace(NOW, workers=32, augment_on="gpu")
    waits, works = (predict(settings, some).images_per_s for some in (few, fetching))
    assert works < 0.75 * waits
    assert predict(settings, replace(fetching, page_cached=True)).images_per_s >= waits


def test_what_is_kept_waits_for_no_disk() -> None:
    slow = replace(WORDS, cores=2, **FITS, epochs=9, costs=replace(WORDS.costs, disk_wait=2e-3, disk_cpu=1e-4))
    settings = replace(NOW, workers=4, cache="ram", augment_on="gpu")
    cached, never = (predict(settings, some) for some in (slow, replace(WORDS, cores=2, **FITS, epochs=9)))
    assert cached.images_per_s == never.images_per_s
    assert cached.of_run < never.of_run


def test_dali_is_planned_as_it_was_measured_with_the_gpu_augmenting() -> None:
    """Decoded on the GPU and augmented on the CPU it does not run at all."""
    few = replace(WORDS, cores=2, rates={CPU: 1e6, MIXED: 1e6})
    planned = [one for one in candidates(replace(NOW, augment_on="cpu"), few) if one.loader == "dali"]
    assert {one.augment_on for one in planned} == {"gpu"}
    unknown = replace(few, costs=replace(few.costs, augment_gpu=None))
    assert not [one for one in candidates(replace(NOW, augment_on="cpu"), unknown) if one.loader == "dali"]


def test_images_that_the_gpu_resizes_cost_less_where_nothing_needs_them_before() -> None:
    some = replace(WORDS, cores=2, costs=replace(WORDS.costs, resize=4e-5, ragged=5e-6))
    resizing = replace(some, costs=replace(some.costs, ragged=None))
    for augment_on, cache, faster in (("gpu", "none", True), ("cpu", "none", False), ("gpu", "ram", False)):
        settings = replace(NOW, workers=2, augment_on=augment_on, cache=cache)  # type: ignore[arg-type]
        before, now = (predict(settings, one).images_per_s for one in (resizing, some))
        assert (now > 1.05 * before) is faster
        assert faster or now == before


def test_augmenting_nothing_on_the_gpu_is_no_plan() -> None:
    stages = replace(WORDS.costs, augment=0.0, augment_gpu=0.0, resize=4e-5, ragged=5e-6)
    plan = make_plan(replace(NOW, workers=4, augment_on="cpu"), replace(WORDS, cores=4, costs=stages))
    assert "dataset.augment_on" not in plan.change


@given(facts())
def test_what_does_not_run_is_not_planned_again_with_other_workers(some: Facts) -> None:
    refused: list[Settings] = []
    while (plan := make_plan(Settings(), some, refused)).best is not plan.current:
        assert replace(plan.best.settings, workers=0) not in {replace(one, workers=0) for one in refused}
        refused.append(plan.best.settings)
    assert plan.change == {}


def test_good_settings_stay() -> None:
    plan = make_plan(replace(NOW, workers=8, augment_on="gpu"), WORDS)
    assert plan.best is plan.current
    assert plan.change == {}


def test_the_batch_grows_only_where_it_pays() -> None:
    steps = tuple(StepCost(size, "fp32", False, True, 1e-5 + 1e-3 / size, 1e-6) for size in (32, 64, 128, 256, 512))
    one = replace(WORDS, steps=steps, cores=64)
    best = make_plan(Settings(workers=32, augment_on="gpu"), one).best.settings
    assert best.batch_size == 512
    flat = replace(one, steps=tuple(replace(step, seconds=1e-4) for step in steps))
    assert make_plan(Settings(workers=32, augment_on="gpu"), flat).best.settings.batch_size == 32


@pytest.mark.parametrize("workers", [0, 2])
def test_on_a_cpu_the_step_and_the_workers_share_the_cores(workers: int) -> None:
    stages = ImageCost(0, 1e-3, 0)
    one = Facts(stages, (StepCost(32, "fp32", False, True, 1e-3, 1e-3),), on_gpu=False, cores=2, samples=100, epochs=1)
    found = predict(Settings(workers=workers, batch_size=32), one).images_per_s
    assert found == pytest.approx(500 if workers == 0 else 1000, rel=0.2)
