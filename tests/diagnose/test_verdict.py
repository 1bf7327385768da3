from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from inkmill.diagnose.fixed_batch import FixedBatch
from inkmill.diagnose.verdict import Evidence, judge
from inkmill.perf.plan import make_plan
from inkmill.perf.predict import Facts, ImageCost, Settings, StepCost
from inkmill.perf.stats import Interval, exactly, stall_of

FACTS = Facts(ImageCost(1e-5, 4e-4, 1e-5), (StepCost(64, "fp32", False, True, 1.6e-4, 1e-5),), True, 8, 1000, epochs=1)
GOOD, POOR = Settings(workers=8, batch_size=64, augment_on="cpu"), Settings(workers=1, batch_size=64)
TIMES = {"read": exactly(1e-5), "decode": exactly(4e-4), "augment": exactly(1e-4)}


def evidence(settings: Settings = POOR, step: float = 10.0, **stalls: tuple[float, float]) -> Evidence:
    """Stalls are (mean, half width) in ms of a step of 10 ms and what they add."""
    warm = step + sum(mean for name, (mean, _) in stalls.items() if name != "fetch")
    found = []
    for name, (mean, half) in stalls.items():
        time = Interval(mean / 1e3, (mean - half) / 1e3, (mean + half) / 1e3, 8)
        found.append(stall_of(name, time, warm / 1e3))  # type: ignore[arg-type]
    times = [exactly(value / 1e3) for value in (step, step, warm)]
    test = FixedBatch(64, *times, None, tuple(found))
    return Evidence(test, TIMES, FACTS, make_plan(settings, FACTS))


def verdict(**found: Any) -> str:
    return judge(evidence(**found)).name


def test_the_largest_real_stall_is_named_with_its_number_and_one_change() -> None:
    found = judge(evidence(copy=(2, 0.1), prepare=(8, 0.5), launch=(0.1, 0.1)))
    assert found.name == "prepare"
    assert "40% of each step (8 +- 0.5 ms)" in found.sentence
    assert "most of it decoding" in found.sentence
    assert list(found.change) == ["dataset.workers"]
    assert "dataset.workers=" in found.sentence


def test_an_interval_that_reaches_into_the_bar_is_no_stall() -> None:
    assert verdict(prepare=(0.6, 0.3), settings=GOOD) == "compute"
    assert verdict(prepare=(0.8, 0.1), settings=GOOD) == "prepare"


def test_noise_that_could_hide_a_stall_is_refused() -> None:
    found = judge(evidence(prepare=(1.0, 1.5), copy=(0.0, 0.05)))
    assert found.name == "cannot tell"
    assert "prepare" in found.sentence
    assert "copy" not in found.sentence
    assert found.change == {}


def test_a_real_stall_is_named_beside_an_unclear_one() -> None:
    assert verdict(prepare=(8, 0.5), fetch=(2.0, 3.0)) == "prepare"


def test_without_stalls_the_step_is_the_limit_and_after_all_was_tried_nothing_is() -> None:
    quiet = evidence(settings=GOOD, prepare=(0.0, 0.05))
    assert judge(quiet).name == "compute"
    assert judge(replace(quiet, tried_steps=True)).name == "none"
    faster = replace(FACTS, steps=(*FACTS.steps, StepCost(64, "bf16", False, True, 5e-5, 1e-5)))
    found = judge(replace(quiet, tried_steps=True, plan=make_plan(GOOD, faster)))
    assert found.name == "compute"
    assert "train.precision=bf16" in found.sentence


def test_fetching_counts_once_where_the_set_stays_in_memory() -> None:
    slow = evidence(fetch=(30, 1), prepare=(2, 0.1))
    assert judge(slow).name == "fetch"
    facts = replace(FACTS, page_cached=True, epochs=100)
    assert judge(replace(slow, facts=facts)).name == "prepare"


def test_small_files_on_a_slow_disk_are_to_be_converted() -> None:
    slow = evidence(settings=GOOD, fetch=(30, 1))
    found = judge(replace(slow, facts=replace(FACTS, small_files=True)))
    assert found.sentence.endswith("--to shards` puts the many small files into few large ones")


@pytest.mark.parametrize(("waits", "name"), [(4.0, "compute"), (15.0, "launch")])
def test_on_a_cpu_the_machine_is_the_limit_where_others_take_more_than_the_step(waits: float, name: str) -> None:
    found = judge(
        replace(evidence(settings=GOOD, launch=(waits, 0.2)), facts=replace(FACTS, on_gpu=False), others_cores=1.7)
    )
    assert found.name == name
    assert "other programs use 1.7 cores" in found.sentence


def test_a_gpu_that_waits_for_its_host_is_launch() -> None:
    assert verdict(settings=GOOD, launch=(4.0, 0.2)) == "launch"


@pytest.mark.parametrize(("waits", "name"), [(1.4, "compute"), (30.0, "launch")])
def test_a_short_wait_for_the_host_is_not_the_answer_where_the_step_could_be_faster(waits: float, name: str) -> None:
    faster = replace(FACTS, steps=(*FACTS.steps, StepCost(64, "bf16", False, True, 8e-5, 1e-5)))  # twice as fast
    found = evidence(settings=GOOD, launch=(waits, 0.1))
    assert judge(replace(found, plan=make_plan(GOOD, faster), tried_steps=True)).name == name
    late = evidence(settings=GOOD, launch=(1.4, 0.1), prepare=(2.0, 0.1))  # a faster step would only wait longer
    assert judge(replace(late, plan=make_plan(GOOD, faster), tried_steps=True)).name == "prepare"
