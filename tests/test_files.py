from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inkmill.errors import OutputError
from inkmill.files import atomic_path, explain, make_folder, write_json_atomic, write_text_atomic


def test_a_file_is_written_whole_with_its_folders(tmp_path: Path) -> None:
    write_text_atomic(tmp_path / "a" / "b.txt", "đường\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "đường\n".encode()


def test_json_keeps_characters_readable_and_refuses_nan(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "a.json", {"text": "đ"})
    assert "đ" in (tmp_path / "a.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="JSON"):
        write_json_atomic(tmp_path / "a.json", {"loss": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"text": "đ"}


def test_a_failure_half_way_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "model.bin"
    write_text_atomic(target, "old")

    def crash_half_way() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half of the ne")
            raise KeyError("crash")

    with pytest.raises(KeyError):
        crash_half_way()
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.bin"]


def test_the_written_file_has_the_rights_that_the_umask_allows(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_text_atomic(tmp_path / "a", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_file_in_the_place_of_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(OutputError, match="results: it is a file, and a folder is needed there"):
        make_folder(tmp_path / "results")
    with pytest.raises(OutputError, match="a part of the path is a file"):
        make_folder(tmp_path / "results" / "train")


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    code = (
        "import resource, signal, sys\n"
        "from inkmill.files import write_text_atomic\n"
        "from inkmill.errors import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: write_text_atomic(sys.argv[1], 'x' * 100_000)\n"
        "except OutputError as error: print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.txt")], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"cannot write {tmp_path / 'a.txt'}: the file would be larger than this system allows\n"
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a Linux device that is always full")
def test_no_space_left_is_explained() -> None:
    with pytest.raises(OSError, match="No space") as caught, open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        full.write(b"x")
    assert explain(caught.value) == "the disk is full; free some space or choose another place"


def test_an_error_about_a_file_names_it() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Path("/no/such/file").read_bytes()
    assert explain(caught.value) == "/no/such/file: no such file or folder"
