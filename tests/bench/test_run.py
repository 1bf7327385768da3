from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import time
from itertools import repeat

import pytest

torch = pytest.importorskip("torch")

from inkmill.bench.baseline import BytesDataset, PilTransform, baseline_case  # noqa: E402
from inkmill.bench.cases import BenchmarkCase, LoadTask, inkmill_cases  # noqa: E402
from inkmill.bench.run import (  # noqa: E402
    BenchRow,
    BenchSettings,
    as_json,
    as_table,
    baseline_speed,
    default_cases,
    measure,
    measure_case,
    notes,
    run,
    select,
)
from inkmill.bench.workload import write_crops  # noqa: E402
from inkmill.data.loaders import LOADERS  # noqa: E402
from inkmill.data.sources import LmdbSource  # noqa: E402
from inkmill.errors import ConfigError  # noqa: E402
from inkmill.machine import machine_stamp  # noqa: E402

pytestmark = pytest.mark.slow

FINISH_LINE = ((16, 32, 128, 3), torch.uint8)


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    return LmdbSource(write_crops(tmp_path_factory.mktemp("bench") / "crops", 64))


def task(source, folder, augment, workers=0):
    return LoadTask(source, folder, batch_size=16, workers=workers, device="cpu", augment=augment)


def settings(**changes):
    values = {"path": None, "images": 64, "seconds": 0.05, "workers": 0, "batch_size": 16, "only": (), "device": "cpu"}
    return BenchSettings(**(values | changes))


def first_batches(case, load_task, count=1):
    stream = case.stream(load_task)
    batches = [next(stream).clone() for _ in range(count)]
    stream.close()
    return batches


def test_the_baseline_delivers_different_batches_of_the_finish_line(crops, tmp_path):
    batches = first_batches(baseline_case("strong"), task(crops, tmp_path, "strong"), 6)  # more than one pass
    assert {(tuple(batch.shape), batch.dtype) for batch in batches} == {FINISH_LINE}
    assert len({batch.numpy().tobytes() for batch in batches}) == 6
    assert float(batches[0].float().std()) > 10


def test_the_baselines_dataset_can_be_sent_to_worker_processes(crops, tmp_path):
    dataset = BytesDataset(crops, PilTransform(task(crops, tmp_path, "strong")))
    assert pickle.loads(pickle.dumps(dataset))[5].shape == (3, 32, 128)


@pytest.mark.parametrize("augment", ["none", "strong"])
def test_every_cache_of_the_workers_gives_the_same_first_batch(crops, tmp_path, augment):
    cases = [c for c in inkmill_cases(augment) if c.loader == "workers" and c.engine != "gpu"]
    first = [
        first_batches(case, task(crops, tmp_path, augment, workers))[0]
        for case in cases
        for workers in ((0, 1) if case.cache == "disk" else (0,))
    ]
    assert len(first) == 4
    assert (tuple(first[0].shape), first[0].dtype) == FINISH_LINE
    assert all(torch.equal(one, first[0]) for one in first)


def test_every_loader_of_the_registry_has_a_case():
    cases = {(c.loader, c.cache) for c in inkmill_cases("strong")}
    assert cases == {(info.name, cache) for info in LOADERS.values() for cache in info.caches}
    assert all(c.ours for c in inkmill_cases("none"))


@pytest.mark.dali
def test_cases_of_dali_deliver_batches_of_the_finish_line(crops, tmp_path):
    pytest.importorskip("nvidia.dali")
    cases = [c for augment in ("none", "strong") for c in inkmill_cases(augment)]
    cases = [c for c in cases if c.loader == "dali" and c.cache != "disk" and c.engine != "gpu"]
    assert cases
    for case in cases:
        batches = first_batches(case, task(crops, tmp_path, case.augment, workers=1), 5)
        assert {(tuple(batch.shape), batch.dtype) for batch in batches} == {FINISH_LINE}


def test_a_case_for_the_gpu_says_so_without_one(crops, tmp_path):
    for case in inkmill_cases("strong"):
        if case.engine == "gpu":
            row = measure_case(case, task(crops, tmp_path, "strong"), 0.01)
            assert row.images_per_s is None
            assert "GPU" in row.note
            assert not row.failed


def test_an_absent_package_becomes_a_row_that_names_it(crops, tmp_path):
    def absent(task):
        import no_such_module

        yield no_such_module

    row = measure_case(BenchmarkCase("absent", absent, "x"), task(crops, tmp_path, "none"), 0.01)
    assert row.images_per_s is None
    assert row.note == "not installed: no_such_module"
    assert not row.failed


def test_a_case_that_fails_is_a_row_and_not_the_end(crops, tmp_path):
    def broken(task):
        yield torch.zeros(1, 1, 1, 3)
        raise OSError("the disk melted")

    row = measure_case(BenchmarkCase("broken", broken, "x"), task(crops, tmp_path, "none"), 0.01)
    assert row.failed
    assert row.note == "failed: OSError: the disk melted"


def test_measuring_leaves_a_cache_full(crops, tmp_path):
    case = next(c for c in inkmill_cases("none") if (c.loader, c.cache) == ("workers", "disk"))
    measure_case(case, task(crops, tmp_path, "none"), 0.01)
    assert list((tmp_path / "cache").iterdir())


def test_rows_come_one_by_one_and_fit_the_json_schema():
    asked = settings(only=("torch-pil", "workers"))
    data = json.loads(json.dumps(as_json(list(run(asked)), asked, machine_stamp())))
    assert set(data) == {"machine", "task", "rows"}
    for row in data["rows"]:
        assert {"loader", "cache", "engine", "augment", "images_per_s", "spread", "note"} <= set(row)
    measured = [(r["loader"], r["cache"], r["augment"]) for r in data["rows"] if r["images_per_s"]]
    assert ("torch-pil", "none", "strong") in measured
    assert {("workers", tier, a) for tier in ("none", "disk", "ram") for a in ("none", "strong")} <= set(measured)
    assert not any(row["failed"] for row in data["rows"])
    assert multiprocessing.active_children() == []


def test_the_users_own_data_can_be_measured(captchas, tmp_path):
    lines = (captchas / "labels.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:40]
    (tmp_path / "labels.tsv").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "images").symlink_to(captchas / "images")
    rows = list(run(settings(path=str(tmp_path), only=("workers",), augment="none", seconds=0.01)))
    assert sum(row.images_per_s is not None for row in rows) == 3


def test_an_unknown_loader_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"unknown loader 'torch-pill' .*did you mean 'torch-pil'"):
        select(default_cases(), ("torch-pill",), None)


def test_cases_are_selected_by_loader_engine_and_augmentation():
    chosen = {(c.loader, c.engine, c.augment) for c in select(default_cases(), ("torch-pil", "cpu"), "strong")}
    assert {("torch-pil", "PIL + torchvision v2", "strong"), ("workers", "cpu", "strong")} <= chosen
    assert {engine for loader, engine, _ in chosen if loader != "torch-pil"} == {"cpu"}
    assert {augment for _, _, augment in chosen} == {"strong"}


def test_times_compare_with_the_baseline_under_the_same_augmentation():
    rows = [
        BenchRow("torch-pil", "none", "PIL", "none", "", False, 1000.0, 0.1),
        BenchRow("torch-pil", "none", "PIL", "strong", "", False, 100.0, 0.1),
        BenchRow("workers", "none", "cpu", "strong", "", True, 700.0, 0.1),
        BenchRow("spdl", "none", "threads", "strong", "not installed: spdl", False),
    ]
    assert baseline_speed(rows, "strong") == 100.0
    table = as_table(rows, "here")
    assert list(table.columns[6].cells) == ["1.0", "1.0", "7.0"]
    assert notes(rows) == ["spdl: not run, not installed: spdl"]


def test_warm_up_takes_as_many_images_as_asked_before_the_clock_runs():
    taken = []

    def stream():
        while True:
            taken.append(len(taken))
            yield torch.zeros(4, 2, 2, 3, dtype=torch.uint8)

    result = measure(stream(), seconds=0.001, warm_images=400)
    assert len(taken) > 100
    assert result.images_per_s > 0
    assert result.spread >= 0
    assert result.shape == (4, 2, 2, 3)


def test_throughput_counts_images_and_not_batches():
    small, large = torch.zeros(1, 1, 1, 3), torch.zeros(1000, 1, 1, 3)
    speeds = [measure(repeat(batch), seconds=0.02, warm_images=1).images_per_s for batch in (small, large)]
    assert speeds[1] > 50 * speeds[0]


def test_a_stream_that_ends_is_an_error():
    with pytest.raises(RuntimeError, match="benchmark case ended"):
        measure(iter([torch.zeros(1, 1, 1, 3)]), seconds=0.01, warm_images=100)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_rows_measured_before_an_interruption_are_not_lost(tmp_path):
    rows = tmp_path / "rows.json"
    command = [sys.executable, "-m", "inkmill", "bench", "loaders", "--images", "64", "--batch-size", "16"]
    command += ["--seconds", "0.01", "--workers", "1", "--only", "workers", "--json", str(rows)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert "workers" in next(line for line in process.stderr if "images/s" in line)
        while not rows.exists() and process.poll() is None:
            time.sleep(0.01)  # the line comes first
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    assert process.returncode != 0
    assert json.loads(rows.read_text())["rows"][0]["loader"] == "workers"
