"""A passphrase is never shown: not in a printed or stored spec, nor in an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inkmill.config.describe import as_yaml
from inkmill.config.load import load_spec
from inkmill.config.results import open_results
from inkmill.crypt import NOT_STORED
from inkmill.errors import ConfigError

PASSPHRASE = "hunter2"


def test_a_printed_spec_has_no_passphrase() -> None:
    run = [sys.executable, "-m", "inkmill", "spec", f"encryption_key={PASSPHRASE}"]
    printed = subprocess.run(run, capture_output=True, text=True, check=True)
    assert PASSPHRASE not in printed.stdout + printed.stderr
    assert f"encryption_key: {NOT_STORED}\n" in printed.stdout


def test_no_way_of_writing_a_spec_down_has_it(tmp_path: Path) -> None:
    spec = load_spec(None, [f"encryption_key={PASSPHRASE}", f"results_dir={tmp_path}"])
    assert spec.encryption_key == PASSPHRASE
    for written in (repr(spec), str(spec.model_dump()), str(spec.model_dump(exclude_unset=True)), as_yaml(spec)):
        assert PASSPHRASE not in written
    assert PASSPHRASE not in spec.model_dump_json()
    with pytest.raises(ConfigError, match="wrong"), open_results(spec, "train"):
        raise ConfigError("wrong")
    assert not [file for file in tmp_path.rglob("*.*") if PASSPHRASE in file.read_text("utf-8")]


def test_where_a_passphrase_lies_is_written_down() -> None:
    assert load_spec(None, ["encryption_key=env:INK"]).model_dump()["encryption_key"] == "env:INK"
    assert "encryption_key: env:INK\n" in as_yaml(load_spec(None, ["encryption_key=env:INK"]))
    assert "encryption_key: null\n" in as_yaml()


@pytest.mark.parametrize("text", [f"[{PASSPHRASE}]", f"{{a: {PASSPHRASE}}}", f"{PASSPHRASE}: x", f"{PASSPHRASE}: [x"])
def test_an_error_does_not_quote_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(f"encryption_key: {text}\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_spec(tmp_path / "spec.yaml")
    assert PASSPHRASE not in str(caught.value)


def test_a_passphrase_stands_for_itself_and_no_other_key_takes_it() -> None:
    assert load_spec(None, ["encryption_key=a${hunter2}b"]).encryption_key == "a${hunter2}b"
    with pytest.raises(ConfigError, match="encryption_key= is empty, and files would be written plain"):
        load_spec(None, ["encryption_key="])
    assert load_spec(None, ["encryption_key=null"]).encryption_key is None
    with pytest.raises(ConfigError, match=r"results_dir: it refers to 'encryption_key', which is not copied"):
        load_spec(None, [f"encryption_key={PASSPHRASE}", "results_dir=a/${encryption_key}"])
