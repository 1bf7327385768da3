from __future__ import annotations

import gc
import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from inkmill.bench.contest import Contestant, Task  # noqa: E402
from inkmill.bench.crops import write_crops  # noqa: E402
from inkmill.bench.measure import measure  # noqa: E402
from inkmill.bench.ours import ours  # noqa: E402
from inkmill.bench.peers import peers  # noqa: E402
from inkmill.bench.peers.pil_v2 import PilTransform  # noqa: E402
from inkmill.bench.peers.torch_pil import BytesDataset  # noqa: E402
from inkmill.bench.run import PEER, Row, Settings, _row, contestants, run  # noqa: E402
from inkmill.bench.show import as_json, as_table, notes, write_chart, yardstick  # noqa: E402
from inkmill.data.sources import LmdbSource  # noqa: E402
from inkmill.errors import ConfigError  # noqa: E402
from inkmill.machine import machine_stamp  # noqa: E402

PEERS = ["torch-pil", "torch-albumentations", "webdataset", "dali-docs", "ffcv", "litdata", "spdl"]


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    return LmdbSource(write_crops(tmp_path_factory.mktemp("bench") / "crops", 64))


def task(source, folder, augment, workers=0):
    return Task(source, folder, batch_size=16, workers=workers, device="cpu", augment=augment)


def settings(**changes):
    values = {"path": None, "images": 64, "seconds": 0.05, "workers": 0, "batch_size": 16, "only": (), "device": "cpu"}
    return Settings(**(values | changes))


@pytest.mark.filterwarnings("ignore")  # some peers leave files and sockets open, which is not ours to mend
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_gives_batches_of_the_finishing_line_or_says_why_not(crops, tmp_path, name):
    contestant = next(c for c in peers("strong") if c.loader == name)
    if contestant.missing("cpu"):
        assert "pip install" in contestant.missing("cpu")
        return
    stream = contestant.stream(task(crops, tmp_path, "strong"))
    batches = [next(stream) for _ in range(6)]  # more than one pass over the 64 crops
    stream.close()
    del stream
    gc.collect()
    for batch in batches:
        assert batch.dtype == torch.uint8
        assert batch.shape == (16, 32, 128, 3)
    assert len({batch.numpy().tobytes() for batch in batches}) == 6
    assert float(batches[0].float().std()) > 10


def test_what_peers_send_to_worker_processes_can_be_sent(crops, tmp_path):
    dataset = BytesDataset(crops, PilTransform(task(crops, tmp_path, "strong")))
    assert pickle.loads(pickle.dumps(dataset))[5].shape == (3, 32, 128)


@pytest.mark.parametrize("augment", ["none", "strong"])
def test_each_of_our_loaders_and_tiers_gives_the_same_first_batch(crops, tmp_path, augment):
    first = []
    for contestant in ours():
        if contestant.augment != augment or contestant.missing("cpu"):
            continue
        if contestant.loader == "dali":  # its pixels differ within a tolerance that its own tests state
            continue
        stream = contestant.stream(task(crops, tmp_path, augment, workers=1))
        first.append(next(stream).clone())
        stream.close()
    assert len(first) == 6
    assert all(torch.equal(one, first[0]) for one in first)


def test_the_resident_row_gives_batches_of_the_finishing_line(crops, tmp_path):
    contestant = next(c for c in ours() if c.cache == "gpu" and c.augment == "strong")
    stream = contestant.stream(task(crops, tmp_path, "strong"))  # on a CPU it is no use, but it works
    batches = [next(stream) for _ in range(5)]
    stream.close()
    assert {(tuple(batch.shape), batch.dtype) for batch in batches} == {((16, 32, 128, 3), torch.uint8)}


@pytest.mark.dali
def test_our_dali_rows_give_batches_of_the_finishing_line(crops, tmp_path):
    pytest.importorskip("nvidia.dali")
    rows = [c for c in ours() if c.loader == "dali" and not c.missing("cpu")]
    assert {(c.cache, c.augment) for c in rows} == {("none", "none"), ("none", "strong"), ("ram", "strong")}
    for contestant in rows:
        stream = contestant.stream(task(crops, tmp_path, contestant.augment, workers=1))
        batches = [next(stream) for _ in range(5)]
        stream.close()
        assert {(tuple(batch.shape), batch.dtype) for batch in batches} == {((16, 32, 128, 3), torch.uint8)}


def test_a_row_for_the_gpu_says_so_without_one():
    gpu_rows = [c for c in ours() if c.needs_gpu]
    assert gpu_rows
    assert {c.missing("cpu") for c in gpu_rows} <= {"needs a GPU", "not installed: pip install 'inkmill[dali-cuda13]'"}


def test_an_absent_package_becomes_a_row_with_the_pip_line(crops, tmp_path):
    contestant = Contestant("absent", lambda task: iter(()), "x", needs=(("no_such_module", "no-such-package"),))
    row = _row(PEER, contestant, task(crops, tmp_path, "none"), 0.01)
    assert row.images_per_s is None
    assert row.note == "not installed: pip install no-such-package"
    assert not row.failed


def test_a_contestant_that_breaks_is_a_row_and_not_the_end(crops, tmp_path):
    def broken(task):
        yield torch.zeros(1, 1, 1, 3)
        raise OSError("the disk melted")

    row = _row(PEER, Contestant("broken", broken, "x"), task(crops, tmp_path, "none"), 0.01)
    assert row.failed
    assert row.note == "failed: OSError: the disk melted"


def test_rows_come_one_by_one_and_fit_the_json_schema(tmp_path):
    asked = settings(only=("torch-pil", "inline"))
    rows = list(run(asked))
    data = json.loads(json.dumps(as_json(rows, asked, machine_stamp())))
    assert set(data) == {"machine", "task", "rows"}
    for row in data["rows"]:
        assert {"loader", "cache", "engine", "augment", "images_per_s", "spread", "note"} <= set(row)
    measured = [(r["loader"], r["cache"], r["augment"]) for r in data["rows"] if r["images_per_s"]]
    assert ("torch-pil", "none", "strong") in measured
    assert {("inline", tier, a) for tier in ("none", "disk", "ram") for a in ("none", "strong")} <= set(measured)
    assert not any(row["failed"] for row in data["rows"])
    assert multiprocessing.active_children() == []


def test_the_users_own_data_can_be_measured(captchas, tmp_path):
    lines = (captchas / "labels.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:40]
    (tmp_path / "labels.tsv").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "images").symlink_to(captchas / "images")
    rows = list(run(settings(path=str(tmp_path), only=("inline",), seconds=0.01)))
    assert sum(row.images_per_s is not None for row in rows) == 6


def test_an_unknown_loader_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"unknown loader 'torch-pill' .*did you mean 'torch-pil'"):
        contestants(("torch-pill",))


def test_rows_are_chosen_by_loader_engine_and_augmentation():
    chosen = {(c.loader, c.engine, c.augment) for _, c in contestants(("torch-pil", "cv", "dali-gpu"), "strong")}
    assert {loader for loader, _, _ in chosen} == {"torch-pil", "inline", "workers", "dali"}
    assert {engine for loader, engine, _ in chosen if loader == "dali"} == {"dali-gpu"}
    assert {augment for _, _, augment in chosen} == {"strong"}


def test_times_compare_with_the_classic_under_the_same_augmentation(tmp_path):
    rows = [
        Row("torch-pil", "none", "PIL", "none", 1000.0, 0.1, "", "peer"),
        Row("torch-pil", "none", "PIL", "strong", 100.0, 0.1, "", "peer"),
        Row("workers", "none", "cv", "strong", 700.0, 0.1, "", "inkmill"),
        Row("ffcv", "none", "FFCV", "strong", None, None, "not installed", "peer"),
    ]
    assert yardstick(rows, "strong") == 100.0
    table = as_table(rows, "here")
    times = list(table.columns[6].cells)
    assert times == ["1.0", "1.0", "7.0"]
    assert notes(rows) == ["ffcv: not run, not installed"]
    write_chart(tmp_path / "chart.png", rows, "here")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_measuring_leaves_a_keep_tier_full(crops, tmp_path):
    contestant = next(c for c in ours() if (c.loader, c.cache, c.augment) == ("inline", "disk", "none"))
    stream = contestant.stream(task(crops, tmp_path, "none"))
    measure(stream, 0.01, warm_images=64)
    stream.close()
    assert list((tmp_path / "kept").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_rows_measured_before_an_interruption_are_not_lost(tmp_path):
    command = [sys.executable, "-m", "inkmill", "bench", "loaders", "--images", "64", "--batch-size", "16"]
    command += [
        "--seconds",
        "0.01",
        "--workers",
        "1",
        "--only",
        "inline,workers",
        "--json",
        str(tmp_path / "rows.json"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert "inline" in next(line for line in process.stderr if "images/s" in line)
        while not (tmp_path / "rows.json").exists() and process.poll() is None:
            time.sleep(0.01)  # the line comes first
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    assert process.returncode != 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows[0]["loader"] == "inline"
