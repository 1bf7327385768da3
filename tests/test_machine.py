from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from inkmill import machine
from inkmill.machine import (
    busy_core_seconds,
    cores,
    machine_stamp,
    memory_left,
    physical_cores,
    stamp_line,
    waited_for_core,
)

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads Linux's /proc")


def spin(seconds: float) -> float:
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        pass
    return time.perf_counter() - began


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_cores_are_those_that_the_process_may_use() -> None:
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "from inkmill.machine import cores; print(cores())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "1"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_a_containers_quota_counts(
    files: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    unlimited = cores()
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert cores() == (expected or unlimited)


@linux
def test_a_containers_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_left()
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert memory_left() == 3000


@linux
def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    before, busy_before = waited_for_core(), busy_core_seconds()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        lasted = spin(0.6)
    finally:
        os.sched_setaffinity(0, allowed)
        for rival in rivals:
            rival.kill()
            rival.wait()
    after, busy_after = waited_for_core(), busy_core_seconds()
    assert before is not None
    assert after is not None
    assert 0.2 < after - before <= lasted
    assert busy_before is not None
    assert busy_after is not None
    assert busy_after - busy_before > 0.3


@linux
def test_two_threads_of_a_core_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert 1 <= physical_cores() <= cores()
    for number in allowed:
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text("0-1\n")
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    assert physical_cores() == 1
    monkeypatch.setattr(machine, "_CPUS", tmp_path / "not told")
    assert physical_cores() == cores()


@linux
def test_what_others_do_on_cores_that_it_may_not_use_is_not_counted() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one core")
    found = []
    try:
        for cores_of in (allowed, allowed[:1], allowed[1:]):
            os.sched_setaffinity(0, cores_of)
            found.append(busy_core_seconds())
    finally:
        os.sched_setaffinity(0, allowed)
    every, first, rest = found
    assert every is not None
    assert first is not None
    assert rest is not None
    assert 0 < first < every
    assert first + rest == pytest.approx(every, abs=1.0)


def test_a_stamp_names_machine_versions_and_date() -> None:
    stamp = json.loads(json.dumps(machine_stamp()))
    assert stamp["cpu"]
    assert stamp["versions"]["numpy"] == np.__version__
    assert datetime.fromisoformat(stamp["date"]).tzinfo is not None
    assert 1 <= stamp["cores"] <= os.cpu_count()


def test_a_process_that_may_use_one_core_has_one() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_line_of_a_stamp_says_what_lacks() -> None:
    stamp = machine_stamp() | {"gpus": [], "cpu": "A CPU", "cores": 3, "load": None}
    line = stamp_line(stamp)
    assert "A CPU" in line
    assert "3 cores" in line
    assert "no GPU" in line
    assert "load" not in line
