"""The advice for each cause, by what the machine has room for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.loaders.plan import STAGES
from inkmill.perf.advice import Advice, Loading, Machine, Waiting, advise

GIB = 2**30
DECODES = {"read": 1.0, "decode": 6.2, "resize": 1.8, "cache": 0.0, "augment": 1.0, "other": -0.1}
WAITING = Waiting(share=0.31, busy=0.98, copying=0.02, stages=DECODES)
LOADING = Loading(
    who="workers",
    makers=4,
    cache="none",
    cache_gib=32,
    store_bytes=int(2.1 * GIB),
    makers_augment=True,
    gpu_can_augment=True,
    small_files=True,
)
FULL = Machine(cores=5, idle_cores=0, ram=60 * GIB, disk=200 * GIB, gpu=70 * GIB)
TIGHT = replace(FULL, ram=GIB, disk=GIB, gpu=0)
READS = DECODES | {"read": 20.0}
AUGMENTS = DECODES | {"augment": 20.0}


def told(machine: Machine = FULL, stages: dict[str, float] = DECODES, **changes: Any) -> Advice:
    waiting = {name: changes.pop(name) for name in ("share", "busy", "copying") if name in changes}
    return advise(replace(WAITING, stages=stages, **waiting), replace(LOADING, **changes), machine)


def test_the_whole_line() -> None:
    assert told() == Advice(
        "decode",
        "31% of the time training waits for data; decoding takes 62% of the workers' time: "
        "dataset.cache=ram would save it (2.1 GiB of 60 GiB free)",
    )


@pytest.mark.parametrize(
    ("machine", "changes", "remedy"),
    [
        (replace(FULL, idle_cores=2), {}, "dataset.workers=6 would use some of 2 cores that are idle"),
        (replace(FULL, idle_cores=2), {"makers": 0}, "dataset.workers=1 would"),
        (replace(FULL, idle_cores=2), {"makers": 0, "share": 0.9}, "dataset.cache=ram"),
        (replace(FULL, idle_cores=1), {}, "dataset.cache=ram would"),
        (replace(TIGHT, idle_cores=1), {}, "dataset.workers=5 would use a core that is idle"),
        (replace(TIGHT, gpu=70 * GIB), {}, "dataset.cache=gpu would save it (2.1 GiB of 70 GiB free)"),
        (replace(TIGHT, gpu=70 * GIB, disk=9 * GIB), {"gpu_can_augment": False}, "dataset.cache=disk would"),
        (
            FULL,
            {"store_bytes": 40 * GIB},
            "dataset.cache=ram dataset.cache_gib=40 would save it (40 GiB of 60 GiB free)",
        ),
        (FULL, {"cache": "ram", "store_bytes": 40 * GIB}, "dataset.cache_gib=40 would keep all pictures"),
        (FULL, {"ranks": 8, "store_bytes": 12 * GIB, "gpu_can_augment": False}, "dataset.cache=disk would"),
        (TIGHT, {}, "the 5 cores of this machine are all busy, and keeping the pictures needs 2.1 GiB (1.0 GiB of RAM"),
        (FULL, {"store_bytes": 9 << 20}, "dataset.cache=ram would save it (9 MiB of 60 GiB free)"),
        (TIGHT, {"cache": "ram"}, "the 5 cores of this machine are all busy, so only more of them would help"),
    ],
)
def test_decoding(machine: Machine, changes: dict[str, Any], remedy: str) -> None:
    advice = told(machine, **changes)
    assert advice.cause == "decode"
    assert f": {remedy}" in advice.line


@pytest.mark.parametrize(
    ("machine", "changes", "remedy"),
    [
        (FULL, {}, "dataset.cache=ram would"),
        (TIGHT, {}, "`inkmill convert SOURCE FOLDER --to shards` would"),
        (replace(TIGHT, disk=9 * GIB), {}, "`inkmill convert"),
        (TIGHT, {"small_files": False}, "no setting would help, but a faster disk would"),
        (replace(TIGHT, idle_cores=1), {"small_files": False}, "dataset.workers=5 would"),
    ],
)
def test_reading(machine: Machine, changes: dict[str, Any], remedy: str) -> None:
    advice = told(machine, READS, **changes)
    assert advice.cause == "read"
    assert f"reading takes 69% of the workers' time: {remedy}" in advice.line


@pytest.mark.parametrize(
    ("machine", "changes", "remedy"),
    [
        (FULL, {}, "dataset.augment_on=gpu would leave it to the GPU"),
        (replace(FULL, gpu=0), {}, "the 5 cores of this machine are all busy, so only fewer changes in dataset.augm"),
        (replace(FULL, idle_cores=9), {"gpu_can_augment": False}, "dataset.workers=6 would"),
        (FULL, {"makers_augment": False, "who": "resident", "cache": "gpu"}, "the 5 cores of this machine are all"),
    ],
)
def test_augmentation(machine: Machine, changes: dict[str, Any], remedy: str) -> None:
    advice = told(machine, AUGMENTS, **changes)
    assert advice.cause == "augment"
    assert f": {remedy}" in advice.line


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"copying": 0.8}, "copy", "80% of that is for the copy to the GPU: dataset.cache=gpu would"),
        ({"copying": 0.8, "cache": "gpu"}, "copy", "a larger dataset.batch_size"),
        ({"busy": 0.3}, "handing over", "the workers that load are idle 70% of the time: dataset.cache=gpu would"),
        ({"busy": 0.3, "who": "dali"}, "dali", "what feeds DALI is idle 70% of the time: dataset.cache=ram would"),
        ({"busy": 0.3, "who": "dali", "cache": "ram"}, "dali", "dataset.loader=workers loads without DALI"),
        ({"busy": 0.3, "makers": 0}, "decode", "decoding takes 62% of the loader's time: dataset.cache=ram"),
    ],
)
def test_what_is_no_stage(changes: dict[str, Any], cause: str, words: str) -> None:
    advice = told(**changes)
    assert advice.cause == cause
    assert words in advice.line


shares = st.floats(0, 1)
sizes = st.integers(0, 2**44)


@given(
    waiting=st.builds(
        Waiting,
        share=shares,
        busy=shares,
        copying=shares,
        stages=st.dictionaries(st.sampled_from(STAGES), st.floats(-1, 1e6)),
    ),
    loading=st.builds(Loading, makers=st.integers(0, 999), store_bytes=sizes, cache_gib=st.floats(0.01, 1e4)),
    machine=st.builds(
        Machine, cores=st.integers(1, 999), idle_cores=st.integers(0, 998), ram=sizes, disk=sizes, gpu=sizes
    ),
)
def test_there_is_always_one_line(waiting: Waiting, loading: Loading, machine: Machine) -> None:
    line = advise(waiting, loading, machine).line
    assert "\n" not in line
    assert "of the time training waits for data; " in line
    if "dataset.workers=" in line and "loader=" not in line:
        count = int(line.split("dataset.workers=")[1].split()[0])
        assert loading.makers < count <= loading.makers + machine.idle_cores
