"""Real data that every test may use."""

from __future__ import annotations

import signal
import tarfile
from pathlib import Path

import pytest

# Started in the background, a shell hands down "ignore Ctrl-C", which the children under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

CAPTCHAS = Path(__file__).parent.parent / "examples" / "captcha_digits4.tar"


@pytest.fixture(scope="session")
def captchas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of real captchas (labels.tsv, images/) that the project carries."""
    place = tmp_path_factory.mktemp("captchas")
    with tarfile.open(CAPTCHAS) as tar:
        tar.extractall(place, filter="data")
    return place / "captcha_digits4"
