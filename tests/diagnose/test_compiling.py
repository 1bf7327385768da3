"""What was compiled before is tried again where there is little time, for torch finds it in its cache."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from inkmill.config.model import ModelSpec
from inkmill.diagnose import compiling
from inkmill.diagnose.compiling import CACHED_S, COMPILE_S, note_compiled, seconds_to_compile
from inkmill.diagnose.facts import Step

STEP = Step(2048, "bf16", False, True, 1e-4, 1e-5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    monkeypatch.setattr(compiling, "cores", lambda: 4)
    return folder


def test_it_is_remembered_as_long_as_torch_keeps_it(cache: Path) -> None:
    model = ModelSpec(backbone="ResNet")
    assert seconds_to_compile(model, STEP) == 4 * COMPILE_S
    note_compiled(model, STEP)
    assert seconds_to_compile(model, replace(STEP, compile=True, seconds=1.0)) == CACHED_S
    assert seconds_to_compile(ModelSpec(backbone="VGG"), STEP) == 4 * COMPILE_S
    assert seconds_to_compile(model, replace(STEP, batch_size=1024)) == 4 * COMPILE_S
    shutil.rmtree(cache)
    assert seconds_to_compile(model, STEP) == 4 * COMPILE_S


def test_a_folder_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.parent.joinpath("inductor").write_text("a file")
    note_compiled(ModelSpec(), STEP)
    assert seconds_to_compile(ModelSpec(), STEP) == 4 * COMPILE_S
