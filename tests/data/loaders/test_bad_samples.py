"""Samples that cannot be loaded, beyond what test_conformance.py asks of every loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from captcha_source import MissingSource

from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.errors import DataError, OutputError


def test_the_other_rows_are_those_of_a_set_without_faults(captcha_plan: Callable[..., LoadPlan]) -> None:
    whole = list(make_loader(captcha_plan()))
    faulty = make_loader(captcha_plan(faults={"broken": frozenset({5})}, on_bad_sample="skip"))
    for expected, batch in zip(whole, faulty, strict=True):
        rows = [row for row, index in enumerate(expected.index) if index != 5]
        assert batch.images.tobytes() == expected.images[rows].tobytes()
        assert batch.texts == [expected.texts[row] for row in rows]


def test_a_batch_may_lose_all_its_rows(captcha_plan: Callable[..., LoadPlan]) -> None:
    skip = {"on_bad_sample": "skip", "max_bad": 0.5}
    plan = captcha_plan(4, {"broken": frozenset({0, 1})}, batch_size=2, shuffle=False, **skip)
    sizes = [len(batch) for batch in make_loader(plan)]
    assert sizes == [0, 2]


def test_a_sample_that_was_bad_once_stays_out_after_resuming(captcha_plan: Callable[..., LoadPlan]) -> None:
    plan = captcha_plan(faults={"broken": frozenset({5})}, on_bad_sample="skip")
    first = make_loader(plan)
    list(first)
    healed = make_loader(captcha_plan(on_bad_sample="skip"))
    healed.load_state_dict(first.state_dict())
    assert 5 not in [index for batch in healed for index in batch.index]
    assert healed.stats.left_out == 1


def test_batches_before_a_bad_sample_arrive(captcha_plan: Callable[..., LoadPlan]) -> None:
    order = captcha_plan().order()
    plan = captcha_plan(faults={"broken": frozenset({int(order.samples(0, 3)[0])})})
    with make_loader(plan, 1) as loader:
        assert len(list(islice(loader, 3))) == 3
        loader.set_epoch(0)
        with pytest.raises(DataError, match="cannot be loaded"):
            list(loader)
        assert loader.state_dict()["batches"] == 3


def test_a_sample_that_cannot_even_be_read_is_noted_without_a_copy(
    captcha_plan: Callable[..., LoadPlan], captchas: Path, tmp_path: Path
) -> None:
    plan = replace(
        captcha_plan(),
        source=MissingSource.first(captchas, 3),
        on_bad_sample="quarantine",
        quarantine=tmp_path,
        max_bad=1.0,
    )
    for _ in range(2):
        assert [len(batch) for batch in make_loader(plan)] == [0]
    rows = [line.split("\t") for line in (tmp_path / "rejects.tsv").read_text("utf-8").splitlines()]
    assert sorted(rows) == [[key, f"{key} is gone", ""] for key in sorted(plan.source.names)]
    assert len(list(tmp_path.iterdir())) == 1


def test_too_many_quarantined_samples_are_an_error_too(captcha_plan: Callable[..., LoadPlan], tmp_path: Path) -> None:
    faults = {"broken": frozenset(range(20, 40))}
    plan = captcha_plan(faults=faults, on_bad_sample="quarantine", quarantine=tmp_path, max_bad=0.1)
    with pytest.raises(DataError, match=r"10\.0% allowed"):
        list(make_loader(plan))


def test_a_quarantine_that_cannot_be_written_is_an_error(captcha_plan: Callable[..., LoadPlan], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    faults = {"broken": frozenset({5})}
    plan = captcha_plan(faults=faults, on_bad_sample="quarantine", quarantine=tmp_path / "file")
    with pytest.raises(OutputError, match="cannot write"):
        list(make_loader(plan))
    with pytest.raises(ValueError, match="needs the folder"):
        captcha_plan(on_bad_sample="quarantine")
