"""Injected bottlenecks are named, each by a whole diagnosis of a few seconds on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from injected import BOTTLENECKS, InjectedBottleneck, injected  # noqa: E402
from inkmill.config.dataset import SourceSpec  # noqa: E402
from inkmill.data.sources import Source, open_source  # noqa: E402
from inkmill.diagnose.run import diagnose  # noqa: E402
from inkmill.machine import cores  # noqa: E402

pytestmark = pytest.mark.slow

BUSY = 0.5
"""Cores used by others from which on the machine itself is a fair answer to why a step is slow."""
FULL = 0.75
"""Share of the cores used by others from which on the machine is saturated, whatever is injected."""


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(captchas: Path) -> Source:
    return open_source(SourceSpec(path=str(captchas)))


@pytest.mark.parametrize("case", BOTTLENECKS, ids=lambda case: case.name)
def test_an_injected_bottleneck_is_named(case: InjectedBottleneck, whole: Source, tmp_path: Path) -> None:
    with injected(case, whole, tmp_path) as (spec, source):
        found = diagnose(spec, lambda line: None, source=source, seconds=3)
        if found.verdict.name == "cannot tell" and (found.others_cores or 0.0) > BUSY:
            found = diagnose(spec, lambda line: None, source=source, seconds=10)  # as its sentence asks for
    expected = {case.verdict}
    if case.verdict == "compute" and (found.others_cores or 0.0) > BUSY:
        expected |= {"launch"}
    if not case.busy and (found.others_cores or 0.0) > FULL * cores():
        expected |= {"launch", "cannot tell"}  # then other programs injected another
    assert found.verdict.name in expected, found.verdict.sentence
    assert found.verdict.name != case.verdict or case.sentence in found.verdict.sentence
    assert found.measured.mean > 0
    assert found.to_json().keys() >= {
        *("verdict", "stalls", "stages", "plan", "machine"),
        *("predicted_images_per_s", "measured_images_per_s"),
    }
