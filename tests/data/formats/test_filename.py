"""Labels in names of files."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.data.conftest import MakeImages

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats import filename
from inkmill.data.sources import open_source
from inkmill.errors import ConfigError


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs alarms")
def test_a_pattern_that_would_take_years_is_one_sentence(
    make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filename, "_SECONDS", 0.2)
    folder = make_images(tmp_path, [f"{'a' * 60}!.png"])
    with pytest.raises(ConfigError, match=r"label_pattern '\(\?P<label>\(a\+\)\+\)' takes more than 0\.2 s"):
        open_source(SourceSpec(path=str(folder)), label_pattern="(?P<label>(a+)+)")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert len(open_source(SourceSpec(path=str(folder)), label_pattern="(?P<label>a+).*")) == 1
