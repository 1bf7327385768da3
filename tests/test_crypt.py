from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill import crypt
from inkmill.crypt import MAGIC, Key, find_key, read_plain, sealed, told, without_secret
from inkmill.errors import ConfigError, ModelFileError

KEY = Key("correct horse")
FILE = KEY.encrypt(b"the weights")


@settings(max_examples=20)
@given(st.binary(max_size=500))
def test_what_was_encrypted_comes_back_and_is_not_to_be_seen(content: bytes) -> None:
    data = KEY.encrypt(content)
    assert data.startswith(MAGIC)
    assert len(content) < 8 or content not in data[len(MAGIC) :]
    assert KEY.decrypt(data, "x") == content
    assert data != KEY.encrypt(content)  # a fresh nonce for every file


def test_another_process_with_the_same_passphrase_opens_it() -> None:
    assert Key("correct horse").decrypt(FILE, "x") == b"the weights"


def test_a_wrong_key_is_one_sentence() -> None:
    with pytest.raises(ModelFileError, match=r"^reader\.onnx: this encryption key does not open it .*$") as caught:
        Key("wrong horse").decrypt(FILE, "reader.onnx")
    assert "horse" not in str(caught.value)


@pytest.mark.parametrize("position", [0, 8, 30, 45, len(FILE) - 1])
def test_a_changed_byte_anywhere_is_noticed(position: int) -> None:
    changed = bytearray(FILE)
    changed[position] ^= 1
    with pytest.raises(ModelFileError):
        KEY.decrypt(bytes(changed), "x")


@pytest.mark.parametrize("work", [b"\x28\x08\x01", b"\x10\xff\x01", b"\x10\x08\xff", b"\x00\x08\x01"])
def test_a_file_that_asks_for_absurd_work_is_refused_at_once(work: bytes) -> None:
    with pytest.raises(ModelFileError, match="more work to derive its key than an honest file"):
        KEY.decrypt(FILE[:9] + work + FILE[12:], "x")


def test_an_encrypted_file_without_a_key_says_how_to_give_one(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(FILE)
    with pytest.raises(ModelFileError, match=r"a\.onnx: encrypted; give its key as encryption_key=env:NAME"):
        read_plain(tmp_path / "a.onnx", None)
    (tmp_path / "a.onnx").write_bytes(FILE[:30])
    with pytest.raises(ModelFileError, match="cut short"):
        read_plain(tmp_path / "a.onnx", KEY)


def test_a_key_is_found_where_the_spec_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INK", "correct horse")
    (tmp_path / "key.txt").write_text("correct horse\r\nanother line\n", "utf-8")
    for given_key in ("env:INK", f"file:{tmp_path / 'key.txt'}", "correct horse"):
        found = find_key(given_key)
        assert found is not None
        assert found.decrypt(FILE, "x") == b"the weights"
    assert find_key(None) is None


@pytest.mark.parametrize("given_key", ["env:NOWHERE_SET", "file:/nowhere/key", crypt.NOT_STORED, ""])
def test_a_key_that_is_not_there_is_one_sentence(given_key: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]*encryption.key[^\n]*$"):
        find_key(given_key)


def test_a_key_is_neither_printed_nor_pickled_nor_written_down() -> None:
    assert "horse" not in repr(KEY) + str(KEY)
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    assert without_secret("correct horse") == crypt.NOT_STORED
    assert without_secret("env:INK") == "env:INK"
    assert without_secret(None) is None


def test_the_value_of_taos_templates_writes_plain_files_and_opens_encrypted_ones(tmp_path: Path) -> None:
    key = find_key("nvidia_tao")
    assert key is not None
    assert sealed(b"weights", key) == b"weights"
    (tmp_path / "old").write_bytes(key.encrypt(b"weights"))
    assert read_plain(tmp_path / "old", key) == b"weights"
    assert told(key).startswith(
        "model files are written plain: encryption_key=nvidia_tao is the value of TAO's templates"
    )
    assert sealed(b"weights", KEY).startswith(MAGIC)
    assert told(KEY) == (
        "model files are written encrypted (encryption_key): whoever is to read them needs inkmill and this key"
    )
    assert told(None) == ""
