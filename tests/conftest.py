"""Real data and small runs that every test may use."""

from __future__ import annotations

import os
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.runtime import speed

# Speed lives in benchmarks/: no property test fails because others use the machine too.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Small models on a busy machine: a second thread of torch only waits for the first. Child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started in the background, a shell hands down "ignore Ctrl-C", which the children under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of DALI slow, and leave slow exports out of coverage.

    DALI takes a second or more to start. Tracing lines makes torch's exporter two and a half times as slow.
    """
    for item in items:
        if item.get_closest_marker("dali") is not None:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is not None and "deploy" in item.path.parts:
            item.add_marker(pytest.mark.no_cover)


CAPTCHAS = Path(__file__).parent.parent / "examples" / "captcha_digits4.tar"


@pytest.fixture(scope="session", autouse=True)
def _short_turns() -> None:
    """Measure speeds of readers briefly: that they are told is tested, not what they are."""
    speed.WINDOW_S = 0.005


@pytest.fixture
def undisturbed() -> Callable[[Callable[[], bool]], bool]:
    """Say whether a measurement comes out as it should in one of three tries: others use the machine too."""
    return lambda comes_out: any(comes_out() for _ in range(3))


@pytest.fixture(scope="session")
def captchas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of real captchas (labels.tsv, images/) that the project carries; only to be read."""
    folder = _unpacked(tmp_path_factory.mktemp("captchas"))
    names = sorted(folder.iterdir())
    yield folder
    assert sorted(folder.iterdir()) == names, "a test wrote beside the captchas: it needs `writable_captchas`"


@pytest.fixture(scope="session")
def writable_captchas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second folder of them, for tests that need a label file of their own beside the images."""
    return _unpacked(tmp_path_factory.mktemp("writable"))


def _unpacked(place: Path) -> Path:
    with tarfile.open(CAPTCHAS) as tar:
        tar.extractall(place, filter="data")
    return place / "captcha_digits4"


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
def few_captchas(writable_captchas: Path) -> Path:
    """A label file beside the captchas that names 120 of them."""
    file = writable_captchas / "few.tsv"
    lines = (writable_captchas / "labels.tsv").read_text("utf-8").splitlines()
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


@pytest.fixture
def build() -> Callable[..., Any]:
    """Build a recogniser of 11 classes and labels of 4 from keys of the model section, always from the same seed."""
    import torch

    from inkmill.config.model import ModelSpec
    from inkmill.tasks.recognition.model import build_recognizer

    def make(num_classes: int = 11, max_label_length: int = 4, **keys: Any) -> Any:
        torch.manual_seed(0)
        return build_recognizer(ModelSpec(**keys), num_classes, max_label_length)

    return make
