"""Advice while training runs: the cause by the table of rules, the setting by the predictor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.loaders import LOADERS
from inkmill.data.loaders.plan import STAGES
from inkmill.perf.predict import Facts, ImageCost, Settings
from inkmill.perf.rules import CONDITIONS, RULES, otherwise
from inkmill.perf.watch import Advice, Waiting, advise

GIB = 2**30
IMAGES = 1_000_000
DECODES = {"read": 25.0, "decode": 155.0, "resize": 45.0, "cache": 0.0, "augment": 25.0, "other": -2.0}
# A minute of a million images: four workers were busy all the time, and the GPU waited for them a third of it.
WAITING = Waiting(seconds=60.0, images=IMAGES, share=0.31, busy=0.98, copying=0.02, stages=DECODES)
SETTINGS = Settings(workers=4, augment_on="cpu")
FULL = Facts(
    ImageCost(0, 0, 0),
    (),
    on_gpu=True,
    cores=5,
    samples=IMAGES,
    cache_bytes=int(2.1 * GIB),
    room={"ram": 45 * GIB, "disk": 160 * GIB, "gpu": 42 * GIB},
    small_files=True,
)
TIGHT = replace(FULL, room={"ram": GIB // 4, "disk": GIB // 4}, gpu_can_augment=False, epochs=1)
READS = DECODES | {"read": 500.0}
AUGMENTS = DECODES | {"augment": 500.0}


def advised(facts: Facts = FULL, stages: dict[str, float] = DECODES, **changes: Any) -> Advice:
    values = {name: changes.pop(name) for name in ("share", "busy", "copying") if name in changes}
    waiting, settings = replace(WAITING, **values), replace(SETTINGS, **changes)
    spent = waiting.seconds * (waiting.busy * settings.workers if settings.workers else waiting.share)
    scale = spent / sum(stages.values())
    scaled = {stage: scale * seconds for stage, seconds in stages.items()}
    return advise(replace(waiting, stages=scaled), settings, facts)


def test_the_whole_line() -> None:
    assert advised() == Advice(
        "decode",
        "31% of the time training waits for data; decoding takes 62% of the workers' time: "
        "set dataset.cache=ram (2.1 GiB of 60 GiB free; predicted: 1.4 times as fast)",
    )


@pytest.mark.parametrize(
    ("facts", "changes", "remedy"),
    [
        (replace(FULL, cores=12), {}, "set dataset.workers=8 (predicted"),
        (replace(TIGHT, cores=12), {}, "set dataset.workers=8 (predicted"),
        (replace(TIGHT, epochs=9, room={"disk": 160 * GIB}), {}, "set dataset.cache=disk (2.1 GiB of 200 GiB free"),
        (replace(FULL, cache_bytes=40 * GIB), {}, "set dataset.cache=ram dataset.cache_gib=40 (40 GiB of 60 GiB free"),
        (replace(FULL, cache="ram", cache_bytes=40 * GIB), {"cache": "ram", "cache_gib": 8.0}, "dataset.cache_gib=40"),
        (TIGHT, {}, "the 5 cores of this machine are all busy, and a cache of the resized images needs 2.1 GiB"),
    ],
)
def test_slow_decoding(facts: Facts, changes: dict[str, Any], remedy: str) -> None:
    advice = advised(facts, **changes)
    assert advice.cause == "decode"
    assert remedy in advice.line


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        (FULL, "set dataset.cache=ram"),
        (TIGHT, "`inkmill convert SOURCE FOLDER --to shards` puts"),
        (replace(TIGHT, small_files=False), "no setting helps, but a faster disk would"),
    ],
)
def test_slow_reading(facts: Facts, remedy: str) -> None:
    advice = advised(facts, READS)
    assert advice.cause == "read"
    assert f"reading takes 69% of the workers' time: {remedy}" in advice.line


def test_slow_augmentation_goes_to_the_gpu_where_there_is_one() -> None:
    assert "augmentation takes" in advised(FULL, AUGMENTS).line
    assert "dataset.augment_on=gpu" in advised(FULL, AUGMENTS).line
    assert "only fewer operations in dataset.augmentation" in advised(TIGHT, AUGMENTS).line


@pytest.mark.parametrize(
    ("facts", "changes", "cause", "words"),
    [
        (FULL, {"copying": 0.8, "augment_on": "gpu"}, "copy", "80% of that is for the copy to the GPU: set dataset.ca"),
        (TIGHT, {"copying": 0.8}, "copy", "a larger dataset.batch_size is copied less often"),
        (TIGHT, {"busy": 0.3}, "handover", "the workers that load are idle 70% of the time: a larger dataset.batch"),
        (FULL, {"busy": 0.3, "loader": "dali"}, "loader", "what feeds dali is idle 70% of the time: dataset.cache=ram"),
        (TIGHT, {"busy": 0.3, "loader": "dali"}, "loader", "dataset.loader=workers loads without it"),
        (TIGHT, {"workers": 0}, "decode", "decoding takes 62% of the loader's time"),
    ],
)
def test_what_is_no_stage(facts: Facts, changes: dict[str, Any], cause: str, words: str) -> None:
    advice = advised(facts, **changes)
    assert advice.cause == cause
    assert words in advice.line


def test_every_rule_has_advice_whatever_the_machine() -> None:
    assert set(STAGES) <= set(RULES)
    for cause, rule in RULES.items():
        assert {condition for condition, _ in rule.otherwise} <= set(CONDITIONS)
        assert rule.otherwise[-1][0] == "always", cause
        assert "{" not in otherwise(cause, FULL) + otherwise(cause, replace(TIGHT, room={}, cores=1))


shares = st.floats(0, 1)
sizes = st.integers(0, 2**44)


@given(
    waiting=st.builds(
        Waiting,
        seconds=st.floats(0.1, 1e4),
        images=st.integers(0, 10**9),
        share=shares,
        busy=shares,
        copying=shares,
        stages=st.dictionaries(st.sampled_from(STAGES), st.floats(-1, 1e6)),
    ),
    loader=st.sampled_from([info.name for info in LOADERS.values() if info.selectable]),
    workers=st.integers(0, 99),
    cores=st.integers(1, 99),
    on_gpu=st.booleans(),
    room=st.fixed_dictionaries({"ram": sizes, "disk": sizes, "gpu": sizes}),
    cache_bytes=st.integers(1, 2**44),
)
def test_there_is_always_one_line(
    waiting: Waiting, loader: str, workers: int, cores: int, on_gpu: bool, room: Any, cache_bytes: int
) -> None:
    facts = replace(FULL, cores=cores, on_gpu=on_gpu, room=room, cache_bytes=cache_bytes, gpu_can_augment=on_gpu)
    line = advise(waiting, replace(SETTINGS, loader=loader, workers=workers), facts).line
    assert "\n" not in line
    assert "of the time training waits for data; " in line
