"""The parts that measure, on real captchas: what they are fed with and what they leave out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from injected import SlowDisk  # noqa: E402
from inkmill.config.dataset import SourceSpec  # noqa: E402
from inkmill.config.load import load_spec  # noqa: E402
from inkmill.config.spec import Spec  # noqa: E402
from inkmill.data.loaders import LoadPlan  # noqa: E402
from inkmill.data.pipeline.resize import Resize  # noqa: E402
from inkmill.data.sources import Mix, Subset, open_source  # noqa: E402
from inkmill.data.types import Batch  # noqa: E402
from inkmill.diagnose.facts import Stages  # noqa: E402
from inkmill.diagnose.fixed_batch import fixed_batch  # noqa: E402
from inkmill.diagnose.look_around import measure_workers  # noqa: E402
from inkmill.diagnose.rig import StepHarness, for_ever  # noqa: E402
from inkmill.diagnose.run import diagnose  # noqa: E402
from inkmill.diagnose.sample import Sampled, enough_to_try, take_sample  # noqa: E402
from inkmill.diagnose.stages import measure_stages  # noqa: E402
from inkmill.diagnose.trial import _warm_up, changed, open_warm, run_trial  # noqa: E402
from inkmill.diagnose.windows import Rounds, exactly  # noqa: E402
from inkmill.errors import DataError  # noqa: E402


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


@pytest.mark.parametrize(("apart", "turns", "states"), [(0.0, 1, {"absent"}), (9.0, 3, {"absent", "unclear"})])
def test_what_noise_leaves_open_is_measured_again(
    spec_of: Callable[..., Spec],
    captchas: Path,
    monkeypatch: pytest.MonkeyPatch,
    apart: float,
    turns: int,
    states: set[str],
) -> None:
    rig = StepHarness(spec_of(), sampled(spec_of(), captchas).prepared)

    def measured(windows: Mapping[str, Callable[[], float]], rounds: Rounds) -> dict[str, list[float]]:
        for window in (*windows.values(), *windows.values()):
            window()
        return {name: [100.0 - apart * (name == "cached"), 100.0 + apart * (name == "cached")] for name in windows}

    monkeypatch.setattr("inkmill.diagnose.fixed_batch.in_rounds", measured)
    monkeypatch.setattr("inkmill.diagnose.fixed_batch.waited_for_core", lambda: 0.0)
    with open_warm(rig, 1.0) as loader:
        found = fixed_batch(rig, loader, 0.1)
    assert found.warm.count == 2 * turns
    assert {stall.state for stall in found.stalls if stall.name != "fetch"} == states
    assert found.stall("copy") is None, "there is no way to a GPU on a CPU"


def test_the_rig_trains_and_cached_batches_are_the_real_ones(spec_of: Callable[..., Spec], captchas: Path) -> None:
    found = sampled(spec_of("dataset.augmentation.preset=captcha"), captchas)
    rig = StepHarness(spec_of("dataset.augmentation.preset=captcha"), found.prepared)
    before = [parameter.clone() for parameter in rig.loop.model.parameters()]
    with rig.open_real() as loader:
        real = next(iter(loader))
    batch = next(rig.repeated())
    assert torch.equal(batch.images, real.images)
    assert batch.texts == real.texts
    rig.step(batch)
    assert any(not torch.equal(old, new) for old, new in zip(before, rig.loop.model.parameters(), strict=True))
    rounds = for_ever(rig.cached)
    assert len({tuple(next(rounds).keys) for _ in range(20)}) == 8
    rig.close()


def test_a_trial_goes_on_with_the_step_of_another_rig(
    spec_of: Callable[..., Spec], captchas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of()
    found = sampled(spec, captchas)
    rig = StepHarness(spec, found.prepared, batches=1)
    loop = rig.loop
    rig.close()
    before = [parameter.clone() for parameter in loop.model.parameters()]
    monkeypatch.setattr("inkmill.tasks.recognition.task.Recognition.build", None)  # there is no other model
    augmented = changed(spec, {"dataset.cache": "ram", "dataset.augmentation": {"preset": "captcha"}})
    assert run_trial(augmented, found, 0.2, 0.1, loop=loop).mean > 0
    assert any(not torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True))


def test_how_workers_slow_each_other_down_is_measured_warm(
    spec_of: Callable[..., Spec], captchas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = Subset(open_source(SourceSpec(path=str(captchas))), range(200))
    disk = SlowDisk(some, 1e-4, tmp_path / "flags.npy")
    read: list[float] = []

    def measure(plan: LoadPlan, *given: object) -> tuple[float, float | None]:
        source, rows = plan.source, np.arange(len(plan.source))
        while source is not disk:
            assert isinstance(source, Subset)
            source, rows = source.source, source.indices[rows]
        read.append(float(np.load(tmp_path / "flags.npy")[rows].mean()))
        return 0.9, None

    monkeypatch.setattr("inkmill.diagnose.run.measure_workers", measure)
    monkeypatch.setattr("inkmill.diagnose.run._THOROUGH_S", 0)
    # What the cold test drops is more than what it reads again, as with one file of very many samples.
    monkeypatch.setattr("inkmill.diagnose.fixed_batch._Test._rows_of_a_window", lambda self: [0])
    diagnose(spec_of("dataset.workers=1"), lambda line: None, source=disk, seconds=2)
    assert read == [1.0]  # else waiting for the disk would count as being slowed down


def test_what_workers_wait_for_the_disk_is_measured_as_they_read(
    captchas: Path, tmp_path: Path, undisturbed: Callable[[Callable[[], bool]], bool]
) -> None:
    some = Subset(open_source(SourceSpec(path=str(captchas))), range(400))
    disk = SlowDisk(some, 5e-3, tmp_path / "flags.npy")
    plan = LoadPlan(disk, Resize(32, 96, 1), batch_size=64)
    stages = Stages(read=1e-4, decode=3e-4, resize=1e-4, wait=1e-3)  # as if one read at a time waited less

    def measured() -> bool:
        efficiency, wait = measure_workers(plan, stages, 0.5, cold=True)
        return 0.1 <= efficiency <= 1 and wait is not None and 0.004 < wait < 0.008

    assert undisturbed(measured)
    assert measure_workers(plan, stages, 0.1, cold=False)[1] is None


def test_every_stage_has_its_time_and_bad_files_are_counted(spec_of: Callable[..., Spec], some: Path) -> None:
    some_source = open_source(SourceSpec(path=str(some)))
    for file in sorted((some / "images").iterdir())[:3]:
        file.write_bytes(b"no image")
    spec = spec_of("dataset.augmentation.preset=captcha", "model.input_channel=3")
    rig = StepHarness(spec, take_sample(spec, some_source, lambda line: None).prepared)
    found = measure_stages(rig, 0.2)
    assert set(found.times) == {"read", "decode", "resize", "draw", "augment", "kept", "collate"}
    assert all(time.mean >= 0 for time in found.times.values())
    assert found.bad == 3
    stages = found.as_stages(wait=0.5)
    assert stages.wait == 0.5
    assert stages.augment_gpu is None
    rig.close()


def test_inputs_of_free_width_have_stages_too(spec_of: Callable[..., Spec], captchas: Path) -> None:
    spec = spec_of("model.input_resize=height", "model.input_width=256", "dataset.augmentation.preset=captcha")
    rig = StepHarness(spec, sampled(spec, captchas).prepared)
    assert "augment" in measure_stages(rig, 0.1).times
    rig.close()


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


def test_a_plan_that_does_not_hold_is_not_kept_for_the_auto_loader(
    spec_of: Callable[..., Spec], captchas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Subset(open_source(SourceSpec(path=str(captchas))), range(500))
    monkeypatch.setattr("inkmill.diagnose.run.run_trial", lambda *given: exactly(1.0))
    found = diagnose(spec_of("train.num_epochs=50"), lambda line: None, source=whole, seconds=2)
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
    assert run_trial(spec, some, 0.2, 0.1, cold=True, tell=told.append).mean > 0
    assert not told


def test_what_was_made_ahead_while_the_first_step_compiled_is_used_up_before_the_clock_runs() -> None:
    class Compiling:
        steps = 0

        def step(self, batch: object) -> None:
            time.sleep(0.3 * (not self.steps))
            self.steps += 1

        def settle(self) -> None:
            pass

    rig: Any = Compiling()
    _warm_up(rig, itertools.repeat(cast(Batch, None)), 12, seconds=0.2)
    assert rig.steps == 3 + 12


def test_a_sample_of_too_few_batches_for_a_cold_trial_is_told(
    spec_of: Callable[..., Spec], captchas: Path, tmp_path: Path
) -> None:
    disk = SlowDisk(Subset(open_source(SourceSpec(path=str(captchas))), range(32)), 1e-3, tmp_path / "flags.npy")
    spec, told = spec_of("dataset.workers=2", "dataset.batch_size=16"), list[str]()
    some = take_sample(spec, disk, lambda line: None)
    assert run_trial(spec, some, 0.2, 0.1, cold=True, tell=told.append).mean > 0
    assert told == [
        "the trial read from memory, not from the disk: the sample has 2 batches of 16, and 2 are made at a time"
    ]
