"""A small, real training run that the training tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec

SMALL = [
    "model.backbone=Tiny",
    "model.sequence=none",
    "model.input_width=64",
    "model.input_height=32",
    "dataset.batch_size=16",
    "dataset.workers=0",
    "dataset.max_label_length=8",
    "train.num_epochs=3",
    "train.device=cpu",
    "train.optim.name=adamw",
    "train.optim.lr=2e-3",
]


@pytest.fixture(scope="session")
def captchas(writable_captchas: Path) -> Path:
    """The captchas that these tests write beside."""
    return writable_captchas


@pytest.fixture(scope="session")
def few_captchas(captchas: Path) -> Path:
    """A label file beside the captchas that names 120 of them."""
    file = captchas / "few.tsv"
    lines = (captchas / "labels.tsv").read_text("utf-8").splitlines()
    file.write_text("\n".join(lines[::42][:120]) + "\n", "utf-8")
    return file


@pytest.fixture
def small_spec(few_captchas: Path, tmp_path: Path) -> Callable[..., Spec]:
    """Makes the spec of a small run; arguments are further overrides."""

    def make(*overrides: str) -> Spec:
        return load_spec(None, [f"dataset.train={few_captchas}", f"results_dir={tmp_path}", *SMALL, *overrides])

    return make


@pytest.fixture(scope="session")
def small_settings() -> list[str]:
    """The overrides of a small run."""
    return SMALL
