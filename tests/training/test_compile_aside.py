"""Another process that compiles the network; what it compiles for is left out here, for that takes minutes on a CPU."""

from __future__ import annotations

import time

import pytest

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.task import Recognition
from inkmill.training.compile_aside import AutoCompile, CompileAside


def small(*settings: str) -> tuple[Spec, Recognition]:
    spec = load_spec(None, ["model.backbone=Tiny", "model.sequence=none", "train.device=cpu", *settings])
    return spec, Recognition(spec.model, Charset.from_texts(["abc"]), 6)


@pytest.mark.slow
def test_the_other_process_says_why_it_did_not_compile() -> None:
    spec, task = small()
    aside = CompileAside(spec, task, task.build(), [(1, 1, 1, 7)])  # seven channels
    while not aside.is_over:
        time.sleep(0.1)
    assert "Error" in str(aside.failure)
    aside.close()


def test_a_short_run_does_not_compile() -> None:
    spec, task = small()
    said: list[str] = []
    auto = AutoCompile(spec, task, task.build(), said.append)
    assert not any(auto.look(left, [(8, 32, 64, 1)]) for left in range(60, 0, -10))
    auto.close()
    assert said == []
