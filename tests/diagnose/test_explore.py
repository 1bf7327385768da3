"""What is tried: the dear only where it could change the plan, and what could not be tried is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inkmill.diagnose import explore as module  # noqa: E402
from inkmill.diagnose.explore import UNTIL, Exploration, Explored, StepTrials, could_gain, step_to_compile  # noqa: E402
from inkmill.diagnose.probe import Times  # noqa: E402
from inkmill.diagnose.timing import Deadline  # noqa: E402
from inkmill.perf.predict import Facts, ImageCost, Settings, StepCost  # noqa: E402
from inkmill.perf.stats import exactly  # noqa: E402

USERS = StepCost(192, "fp32", False, True, 1 / 5_000, 1 / 20_000)
FAST = StepCost(1024, "bf16", False, True, 1 / 13_000, 1 / 30_000)
MANY = Facts(
    ImageCost(25e-6, 75e-6, 25e-6, augment=137e-6, other=21e-6, cached=3e-6),
    (USERS,),
    on_gpu=True,
    cores=16,
    samples=10**9,
    epochs=1,
)
MIXED, CPU = (("dali", (("decode_on", place),)) for place in ("mixed", "cpu"))
NOW = Settings(workers=2, batch_size=192)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which trials were made; each finds what a machine like that found."""
    names: list[str] = []

    def cheap(self: StepTrials, users: StepCost) -> None:
        self.steps.append(FAST)

    def compiled(self: StepTrials, step: StepCost) -> None:
        names.append("compile")
        self.steps.append(replace(step, compile=True, seconds=FAST.seconds / 1.2))

    def augment(*given: Any) -> Times:
        names.append(f"augment {given[2]}")
        return {"augment (GPU)": exactly(7e-7), "launch augment (GPU)": exactly(1e-6)}

    def loader(plan: Any, variant: Any, *given: Any) -> tuple[float, str]:
        names.append("dali")
        return 60_000.0, ""

    monkeypatch.setattr(StepTrials, "try_cheap", cheap)
    monkeypatch.setattr(StepTrials, "try_compiled", compiled)
    monkeypatch.setattr(module, "measure_gpu_augmentation", augment)
    monkeypatch.setattr(module, "measure_loader", loader)
    monkeypatch.setattr(module, "variants", lambda: [MIXED])
    return names


@pytest.fixture
def explored(tried: list[str]) -> Callable[..., Explored]:
    plan = SimpleNamespace(numbers=object(), pipeline=None, resize=SimpleNamespace(mode="stretch"))

    def run(facts: Facts, seconds: float = 60.0, current: Settings = NOW) -> Explored:
        device = torch.device("cpu")
        deadline = Deadline(seconds / UNTIL)
        run.left_out = deadline.left_out  # type: ignore[attr-defined]
        return Exploration(None, None, plan, device, current, facts, deadline).run()  # type: ignore[arg-type]

    return run


def test_where_processes_can_feed_the_step_only_the_step_is_worked_on(
    explored: Callable[..., Explored], tried: list[str]
) -> None:
    found = explored(MANY)
    assert tried == ["compile"]
    assert [step.compile for step in found.facts.steps] == [False, False, True]
    assert found.tried_steps
    assert found.notes == ()


def test_where_they_cannot_the_gpu_is_asked_to_augment_and_then_to_decode(
    explored: Callable[..., Explored], tried: list[str]
) -> None:
    found = explored(replace(MANY, cores=2))
    assert tried == ["augment 1024", "compile", "dali"], "the batch of the plan, so that the trial compiles nothing"
    assert found.facts.costs.augment_gpu == 7e-7
    assert found.facts.rates == {MIXED: 60_000.0}
    assert set(found.times) == {"augment (GPU)", "launch augment (GPU)"}


def test_where_decoding_is_dear_dali_is_asked_though_augmenting_alone_would_not_pay(
    explored: Callable[..., Explored], tried: list[str]
) -> None:
    explored(replace(MANY, cores=8, costs=replace(MANY.costs, decode=5e-3)))
    assert [name.split()[0] for name in tried] == ["augment", "dali", "compile"]


def test_what_fed_the_step_may_be_too_slow_for_a_compiled_one(
    explored: Callable[..., Explored], tried: list[str]
) -> None:
    explored(replace(MANY, cores=5))
    assert [name.split()[0] for name in tried] == ["compile", "augment"]


def test_a_compiler_that_fails_is_told(
    explored: Callable[..., Explored], tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> Times:
        raise torch.OutOfMemoryError("too large\nmore")

    monkeypatch.setattr(module, "measure_gpu_augmentation", fails)
    found = explored(replace(MANY, cores=2))
    assert found.facts.costs.augment_gpu is None
    assert "dataset.augment_on=gpu does not run here: too large" in found.notes


def test_a_user_of_dali_is_not_told_that_it_does_nothing(explored: Callable[..., Explored], tried: list[str]) -> None:
    """Its speed is known from the user's own run, also while another way to decode is imagined."""
    facts = replace(MANY, rates={CPU: 4_000.0}, costs=replace(MANY.costs, augment_gpu=1e-7))
    found = explored(facts, current=replace(NOW, loader="dali", options=CPU[1], augment_on="gpu"))
    assert found.facts.rates[CPU] == 4_000.0


def test_what_there_is_no_time_for_is_noted(explored: Callable[..., Explored], tried: list[str]) -> None:
    explored(MANY, seconds=10.0)
    assert tried == []
    assert explored.left_out == [  # type: ignore[attr-defined]
        "trying train.compile=true was left out: it takes about 35 s, and there was less time left (see --seconds)"
    ]


def test_what_the_user_has_already_is_not_tried_again(explored: Callable[..., Explored], tried: list[str]) -> None:
    compiled = replace(USERS, compile=True, seconds=1 / 20_000)
    explored(replace(MANY, steps=(compiled,), cores=64), current=replace(NOW, compile=True))
    assert tried == []


def test_imagination_counts_only_where_it_changes_the_plan() -> None:
    half = replace(USERS, batch_size=384, seconds=USERS.seconds / 2, host=USERS.host / 2)
    assert could_gain(NOW, MANY, replace(MANY, steps=(USERS, half)))
    slow = replace(MANY, cores=1, costs=replace(MANY.costs, decode=5e-3))
    assert not could_gain(NOW, slow, replace(slow, steps=(USERS, half)))


def test_the_step_to_compile_is_the_fastest_and_one_is_enough() -> None:
    assert step_to_compile((USERS, FAST)) is FAST
    assert step_to_compile((USERS, FAST, replace(USERS, compile=True))) is None
