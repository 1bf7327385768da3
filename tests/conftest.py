"""Real data that every test may use."""

from __future__ import annotations

import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from inkmill.runtime import speed

# Speed lives in benchmarks/: no property test fails because others use the machine too.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Started in the background, a shell hands down "ignore Ctrl-C", which the children under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave slow tests out of coverage: noting which lines run makes torch's exporter two and a half times as slow."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.no_cover)


CAPTCHAS = Path(__file__).parent.parent / "examples" / "captcha_digits4.tar"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: on a busy machine a second one only waits for the first."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
