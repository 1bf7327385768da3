"""When a run is told that it waits for data: not at its start, not while a store is filled, once for each cause."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from inkmill.config.dataset import SourceSpec
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.loaders.plan import Stats
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import open_source
from inkmill.perf.predict import look_up
from inkmill.perf.watch import WARM_UP_S, WINDOW_S, Advice, Waiting, WaitingWatch, watch_loader
from inkmill.training.run import train


class Run:
    """A run whose clocks are turned by hand."""

    def __init__(self) -> None:
        self.stats, self.now, self.asked = Stats(), 1000.0, list[Waiting]()
        self.watch = WaitingWatch(self.stats, 2, self._advise)

    def _advise(self, waiting: Waiting) -> Advice:
        self.asked.append(waiting)
        stage, share = waiting.slowest()
        return Advice(stage, f"{stage} {share:.0%}")

    def epoch(self, seconds: float, waits: float, stage: str = "decode", counts: bool = True) -> list[str]:
        """Train for so long, a step a second; return the lines that were said."""
        self.watch.epoch_starts(self.now, counts)
        said = []
        for _ in range(int(seconds)):
            self.now += 1
            self.stats.waited_s += waits
            self.stats.stages[stage] = self.stats.stages.get(stage, 0.0) + 1.5
            said.append(self.watch.look(self.now))
        said.append(self.watch.epoch_ends(self.now))
        return [line for line in said if line is not None]


def test_the_start_of_a_run_is_not_judged() -> None:
    run = Run()
    assert run.epoch(WARM_UP_S, waits=1.0) == []
    assert run.epoch(2 * WINDOW_S, waits=0.04) == []
    assert run.watch.summary() is None
    assert run.watch.as_dict()["seconds"] == pytest.approx(WARM_UP_S + 2 * WINDOW_S * 0.04)


def test_a_minute_of_waiting_is_told_once_and_in_the_end() -> None:
    run = Run()
    assert run.epoch(WARM_UP_S + 5 * WINDOW_S, waits=0.3) == ["decode 100%"]
    assert run.asked[0].share == pytest.approx(0.3)
    assert run.asked[0].busy == pytest.approx(0.75)
    assert run.watch.summary() == "over the run, decode 100%"
    assert run.watch.as_dict()["advice"] == ["decode 100%"]


def test_another_cause_is_another_line() -> None:
    run = Run()
    assert run.epoch(WARM_UP_S + WINDOW_S, waits=0.3) == ["decode 100%"]
    assert run.epoch(2 * WINDOW_S, waits=0.3, stage="augment") == ["augment 100%"]


def test_minutes_go_on_over_short_epochs_but_not_over_what_lies_between() -> None:
    run = Run()
    run.epoch(WARM_UP_S, waits=0.0)
    lines = []
    for _ in range(5):
        run.now += 600  # a validation
        lines += run.epoch(WINDOW_S / 4, waits=0.5)
    assert lines == ["decode 100%"]
    assert run.asked[0].share == pytest.approx(0.5)


def test_an_epoch_that_fills_a_store_is_not_judged() -> None:
    run = Run()
    assert run.epoch(5 * WINDOW_S, waits=0.9, counts=False) == []
    assert run.epoch(2 * WINDOW_S, waits=0.01) == []
    assert run.watch.summary() is None


def test_where_there_is_a_gpu_its_idleness_counts() -> None:
    run = Run()
    run.stats.idle_s = 0.0
    assert run.epoch(WARM_UP_S + 2 * WINDOW_S, waits=0.9) == []


def test_a_real_run_says_it_and_leaves_the_figures(
    small_spec: Callable[..., Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WARM_UP_S", "WINDOW_S", "SHORTEST_RUN_S"):
        monkeypatch.setattr(f"inkmill.perf.watch.{name}", 0.0)
    monkeypatch.setattr("inkmill.perf.rules.STALL_SHARE", -1.0)
    text = io.StringIO()
    result = train(small_spec("train.log_every=2"), console=Console(file=text, width=400))
    lines = [line for line in text.getvalue().splitlines() if "of the time training waits for data; " in line]
    assert lines
    assert lines[-1].startswith("over the run, ")
    waiting = result.metrics["waiting"]
    assert waiting["images"] == 3 * result.metrics["data"]["train"]["used"]
    assert 0 < waiting["share"] <= 1
    assert waiting["stages"]["decode"] > waiting["stages"]["resize"] > 0
    status = [json.loads(line) for line in (result.folder / "status.json").read_text().splitlines()]
    trained = [line["kpi"] for line in status if "trained" in line.get("message", "")]
    assert len(trained) == 3
    assert all(0 < kpi["loading_decode"] <= 1 for kpi in trained)


@pytest.fixture
def plan(few_captchas: Path) -> LoadPlan:
    return LoadPlan(open_source(SourceSpec(path=str(few_captchas))), Resize(32, 64, 3))


def test_the_watch_of_a_loader_gives_advice_for_it(plan: LoadPlan, small_spec: Callable[..., Spec]) -> None:
    watch = watch_loader(DeviceLoader(make_loader(plan), "cpu"), small_spec(), 1)
    stats = watch._stats
    watch.epoch_starts(0.0)
    watch.look(WARM_UP_S)
    stats.waited_s, stats.images, stats.stages = WINDOW_S / 2, 1000, {"decode": WINDOW_S / 2}
    line = watch.look(WARM_UP_S + WINDOW_S)
    assert line is not None
    assert "50% of the time training waits for data; decoding takes 100% of the loader's time" in line


def test_what_the_machine_has_left_for_a_run(plan: LoadPlan, small_spec: Callable[..., Spec], tmp_path: Path) -> None:
    import torch

    dataset = small_spec(f"dataset.cache_dir={tmp_path}/not/there/yet").dataset
    found = look_up(plan, dataset, torch.device("cpu"))
    assert found["cache_bytes"] == len(plan.source) * 32 * 64 * 3
    assert min(found["room"].values()) > 0
    assert "gpu" not in found["room"]
    assert found["small_files"]
    assert not found["gpu_can_augment"]
    shared = look_up(plan, dataset, torch.device("cpu"), ranks=4)
    assert shared["cores"] == max(1, found["cores"] // 4)
    assert shared["room"]["ram"] < found["room"]["ram"]
