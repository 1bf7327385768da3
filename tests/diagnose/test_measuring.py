"""The parts that measure, on real captchas: sample, step, stages, stalls, trial, and the deadline of all of it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from injected import SlowDisk  # noqa: E402
from inkmill.config.dataset import SourceSpec  # noqa: E402
from inkmill.config.load import load_spec  # noqa: E402
from inkmill.config.spec import Spec  # noqa: E402
from inkmill.data.sources import Mix, Subset, open_source  # noqa: E402
from inkmill.data.types import Batch  # noqa: E402
from inkmill.diagnose.harness import Sampled, StepHarness, enough_to_try, for_ever, take_sample  # noqa: E402
from inkmill.diagnose.probe import (  # noqa: E402
    Reading,
    _bytes_from_storage,
    costs_of,
    measure_efficiency,
    measure_reading,
    measure_stages,
)
from inkmill.diagnose.run import diagnose  # noqa: E402
from inkmill.diagnose.validate_plan import _warm_up, changed, run_trial  # noqa: E402
from inkmill.errors import DataError  # noqa: E402
from inkmill.perf.stats import exactly  # noqa: E402
from inkmill.training.loop import TrainingLoop  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def spec_of(tmp_path: Path) -> Callable[..., Spec]:
    def make(*overrides: str) -> Spec:
        small = ["model.backbone=VGG", "model.feature_channel=8", "model.sequence=none", "model.input_width=64"]
        small += ["train.device=cpu", "dataset.batch_size=8", "dataset.workers=0", f"results_dir={tmp_path}"]
        return load_spec(None, [*small, *overrides])

    return make


def sampled(spec: Spec, captchas: Path, count: int = 64) -> Sampled:
    return take_sample(spec, Subset(open_source(SourceSpec(path=str(captchas))), range(500)), lambda line: None, count)


def test_a_sample_is_a_random_part_with_labels_that_can_be_trained_on(
    spec_of: Callable[..., Spec], captchas: Path, tmp_path: Path
) -> None:
    found = sampled(spec_of(), captchas, 100)
    keys = {found.source.key(i) for i in range(100)}
    assert len(keys) == 100
    assert len(found.cut(7).source) == 7
    (tmp_path / "list.txt").write_text("\n".join("012345678") + "\n", encoding="utf-8")
    fewer = sampled(spec_of(f"dataset.character_list_file={tmp_path}/list.txt"), captchas, 100)
    labels = [fewer.source.target(i).value for i in range(len(fewer.source))]  # type: ignore[union-attr]
    assert 0 < len(labels) < 100
    assert not any("9" in label for label in labels)
    with pytest.raises(DataError, match="inkmill check"):
        sampled(spec_of("dataset.max_label_length=3"), captchas)


def test_a_set_of_any_size_is_sampled_at_once(spec_of: Callable[..., Spec], captchas: Path) -> None:
    whole = open_source(SourceSpec(path=str(captchas)))
    huge = Mix([whole], [100_000.0])
    assert len(take_sample(spec_of(), huge, lambda line: None, 50).source) == 50


def test_the_step_trains_and_batches_in_memory_are_the_real_ones(spec_of: Callable[..., Spec], captchas: Path) -> None:
    found = sampled(spec_of("dataset.augmentation.preset=captcha"), captchas)
    harness = StepHarness(spec_of("dataset.augmentation.preset=captcha"), found.prepared)
    before = [parameter.clone() for parameter in harness.loop.model.parameters()]
    with harness.open_real() as loader:
        real = next(iter(loader))
    batch = next(harness.repeated())
    assert torch.equal(batch.images, real.images)
    assert batch.texts == real.texts
    harness.step(batch)
    assert any(not torch.equal(old, new) for old, new in zip(before, harness.loop.model.parameters(), strict=True))
    rounds = for_ever(harness.memory)
    assert len({tuple(next(rounds).keys) for _ in range(20)}) == 8
    harness.close()


def test_a_trial_goes_on_with_the_step_of_another_rig(
    spec_of: Callable[..., Spec], captchas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of()
    found = sampled(spec, captchas)
    harness = StepHarness(spec, found.prepared, batches=1)
    loop = harness.loop
    harness.close()
    before = [parameter.clone() for parameter in loop.model.parameters()]
    monkeypatch.setattr("inkmill.tasks.recognition.task.Recognition.build", None)  # there is no other model
    augmented = changed(spec, {"dataset.cache": "ram", "dataset.augmentation": {"preset": "captcha"}})
    assert run_trial(augmented, found, 0.2, 0.1, loop=loop).mean > 0
    assert any(not torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True))


def test_every_stage_has_its_time_and_bad_files_do_not_stop_it(spec_of: Callable[..., Spec], some: Path) -> None:
    some_source = open_source(SourceSpec(path=str(some)))
    for file in sorted((some / "images").iterdir())[:3]:
        file.write_bytes(b"no image")
    spec = spec_of("dataset.augmentation.preset=captcha", "model.input_channel=3")
    harness = StepHarness(spec, take_sample(spec, some_source, lambda line: None).prepared)
    found = measure_stages(harness.plan, on_gpu=False, seconds=0.2)
    assert set(found) == {"read", "decode", "resize", "cache", "augment", "other"}
    assert all(time.mean >= 0 for time in found.values())
    assert found["decode"].mean > found["cache"].mean
    costs = costs_of(found, Reading(1000.0, 1e-5, disk_wait_s=0.5))
    assert (costs.disk_wait, costs.augment_gpu, costs.decode) == (0.5, None, found["decode"].mean)
    harness.close()


def test_inputs_of_free_width_have_stages_too(spec_of: Callable[..., Spec], captchas: Path) -> None:
    spec = spec_of("model.input_resize=height", "model.input_width=256", "dataset.augmentation.preset=captcha")
    harness = StepHarness(spec, sampled(spec, captchas).prepared)
    assert "augment" in measure_stages(harness.plan, on_gpu=False, seconds=0.1)
    harness.close()


def test_how_workers_slow_each_other_down_is_a_share(spec_of: Callable[..., Spec], captchas: Path) -> None:
    harness = StepHarness(spec_of(), sampled(spec_of(), captchas).prepared)
    costs = costs_of(measure_stages(harness.plan, False, 0.2), Reading(1000.0, 1e-5))
    assert 0.1 <= measure_efficiency(harness.plan, "cpu", costs, 0.3) <= 1
    harness.close()


def test_a_slow_disk_is_waited_for_and_takes_no_core(
    captchas: Path, tmp_path: Path, undisturbed: Callable[[Callable[[], bool]], bool]
) -> None:
    some = Subset(open_source(SourceSpec(path=str(captchas))), range(600))

    def seen() -> bool:
        found = measure_reading(SlowDisk(some, 0.005, tmp_path / "flags.npy"), 0.8)
        assert found.cold_s is not None
        assert not found.notes
        return 0.004 < found.disk_wait_s < 0.009 and found.disk_cpu_s < 0.001 and found.warm_s < 0.003

    assert undisturbed(seen)


class BusyDisk(SlowDisk):
    """First reads take the core, as the system's own work of fetching does."""

    def image(self, index: int) -> bytes:
        data = self.source.image(index)
        if not self._cached()[index]:
            self._cached()[index] = 1
            until = time.thread_time() + self.latency_s
            while time.thread_time() < until:
                pass
        return data


def test_what_a_cold_read_takes_of_the_core_is_no_waiting(captchas: Path, tmp_path: Path) -> None:
    some = Subset(open_source(SourceSpec(path=str(captchas))), range(600))
    found = measure_reading(BusyDisk(some, 0.003, tmp_path / "busy.npy"), 0.4)
    assert 0.0025 < found.disk_cpu_s < 0.0035


def test_samples_in_no_file_have_no_cold_figures(captchas: Path) -> None:
    class Elsewhere(Subset):
        def files(self, index: object) -> list[Path]:
            return []

    found = measure_reading(Elsewhere(open_source(SourceSpec(path=str(captchas))), range(50)), 0.1)
    assert found.cold_s is None
    assert "in no file" in found.notes[0]


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="drops files from Linux's page cache")
def test_reading_that_stays_in_memory_is_not_called_cold(captchas: Path) -> None:
    """Files in memory (tmpfs), or mapped by another program, stay there; the disk's own counter says so."""
    some = Subset(open_source(SourceSpec(path=str(captchas))), range(100))
    before = _bytes_from_storage()
    found = measure_reading(some, 0.2)
    read = _bytes_from_storage() - before
    assert (found.cold_s is None) == (read < 0.5 * found.image_bytes)
    assert bool(found.notes) == (found.cold_s is None)


def test_a_changed_spec_keeps_all_else(spec_of: Callable[..., Spec]) -> None:
    spec = spec_of("dataset.augmentation.preset=captcha", "dataset.train=[{path: a, weight: 2}]")
    after = changed(spec, {"dataset.workers": 3, "train.precision": "bf16"})
    assert (after.dataset.workers, after.train.precision) == (3, "bf16")
    after.dataset.workers, after.train.precision = 0, "auto"
    assert after == spec


@pytest.fixture
def some(captchas: Path, tmp_path: Path) -> Path:
    """A folder of 40 real captchas, the test's own to spoil."""
    import shutil

    folder = tmp_path / "some"
    (folder / "images").mkdir(parents=True)
    lines = (captchas / "labels.tsv").read_text(encoding="utf-8").splitlines()[:40]
    for line in lines:
        shutil.copy(captchas / line.split("\t")[0], folder / "images")
    (folder / "labels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_plan_that_does_not_hold_is_not_saved_for_the_auto_loader(
    spec_of: Callable[..., Spec], captchas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Subset(open_source(SourceSpec(path=str(captchas))), range(500))
    monkeypatch.setattr("inkmill.diagnose.run.run_trial", lambda *given: exactly(1.0))
    found = diagnose(spec_of("train.num_epochs=50"), lambda line: None, source=whole, seconds=10)
    assert any("the plan was taken back: tried, it made 1 images/s" in note for note in found.notes)
    assert found.plan.best.settings == found.plan.current.settings == found.auto.best.settings


def test_a_cold_trial_is_no_faster_than_the_disk(
    spec_of: Callable[..., Spec],
    captchas: Path,
    tmp_path: Path,
    undisturbed: Callable[[Callable[[], bool]], bool],
) -> None:
    """What workers made ahead before the clock ran must not count as made while it ran."""
    disk = SlowDisk(Subset(open_source(SourceSpec(path=str(captchas))), range(208)), 0.02, tmp_path / "flags.npy")
    spec = spec_of("dataset.workers=4", "dataset.batch_size=16")
    some = take_sample(spec, disk, lambda line: None)
    assert undisturbed(lambda: run_trial(spec, some, 0.5, 0.1, cold=True).mean < 1.3 * 4 / 0.02)


def test_a_cold_trial_takes_more_of_the_data_where_its_sample_has_too_few_batches(
    spec_of: Callable[..., Spec], captchas: Path, tmp_path: Path
) -> None:
    disk = SlowDisk(Subset(open_source(SourceSpec(path=str(captchas))), range(400)), 1e-3, tmp_path / "flags.npy")
    spec, told = spec_of("dataset.workers=2", "dataset.batch_size=16"), list[str]()
    some = take_sample(spec, disk, lambda line: None, 32)
    more = enough_to_try(some, spec)
    assert len(more.source) == 4 * 2 * 16
    assert more.prepared.task is some.prepared.task, "the step must stay what it was compiled for"
    assert enough_to_try(more, spec) is more
    greedy = spec_of("dataset.workers=16", "dataset.batch_size=64")
    everything = enough_to_try(some, greedy)
    assert enough_to_try(everything, greedy) is everything, "there is no more to take"
    assert run_trial(spec, some, 0.2, 0.1, cold=True, say=told.append).mean > 0
    assert not told


def test_what_was_prefetched_while_the_first_step_compiled_does_not_count() -> None:
    class Compiling:
        steps = 0

        def step(self, batch: object) -> None:
            time.sleep(0.3 * (not self.steps))
            self.steps += 1

        def settle(self) -> None:
            pass

    harness: Any = Compiling()
    _warm_up(harness, itertools.repeat(cast(Batch, None)), 12, seconds=0.2)
    assert harness.steps == 3 + 12


def test_a_sample_of_too_few_batches_for_a_cold_trial_is_noted(
    spec_of: Callable[..., Spec], captchas: Path, tmp_path: Path
) -> None:
    disk = SlowDisk(Subset(open_source(SourceSpec(path=str(captchas))), range(32)), 1e-3, tmp_path / "flags.npy")
    spec, told = spec_of("dataset.workers=2", "dataset.batch_size=16"), list[str]()
    some = take_sample(spec, disk, lambda line: None)
    assert run_trial(spec, some, 0.2, 0.1, cold=True, say=told.append).mean > 0
    assert told == [
        "the trial read from memory, not from the disk: the sample has 2 batches of 16, and 2 are assembled at a time"
    ]


SLOW_STEP_S = 0.5


def slow_forward(model: torch.nn.Module, given: object) -> None:
    """Take half a second of the core."""
    until = time.perf_counter() + SLOW_STEP_S
    while time.perf_counter() < until:
        pass


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose step takes half a second, whatever the batch."""
    before = TrainingLoop.__init__

    def slowed(loop: TrainingLoop, *given: Any, **named: Any) -> None:
        before(loop, *given, **named)
        loop.model.register_forward_pre_hook(slow_forward)

    monkeypatch.setattr(TrainingLoop, "__init__", slowed)


@pytest.mark.parametrize(("workers", "budget"), [(0, 10.0), (2, 10.0)])
def test_the_time_limit_holds_for_slow_steps(
    spec_of: Callable[..., Spec], captchas: Path, slow_steps: None, workers: int, budget: float
) -> None:
    whole = Subset(open_source(SourceSpec(path=str(captchas))), range(500))
    spec = spec_of(f"dataset.workers={workers}", "dataset.batch_size=32", "train.num_epochs=9")
    found = diagnose(spec, lambda line: None, source=whole, seconds=budget)
    assert found.seconds < budget + 2 * SLOW_STEP_S, found.phases
    busy = (found.others_cores or 0.0) > 0.5  # then that is an answer too; "cannot tell" never is
    assert found.verdict.name in ({"compute", "launch"} if busy else {"compute"}), found.verdict.sentence
    assert {stall.state for stall in found.test.stalls if stall.name != "launch"} == {"absent"}


def test_a_budget_below_the_floor_still_answers_and_names_what_it_left_out(
    spec_of: Callable[..., Spec], captchas: Path, slow_steps: None
) -> None:
    whole = Subset(open_source(SourceSpec(path=str(captchas))), range(500))
    found = diagnose(spec_of("dataset.batch_size=32"), lambda line: None, source=whole, seconds=1)
    assert found.test.warm.count == 1, "one round is the floor"
    assert found.seconds < 16 * SLOW_STEP_S
    assert any("a second round" in note for note in found.notes)
