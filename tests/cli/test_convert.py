from __future__ import annotations

import json
from pathlib import Path

import pytest

from inkmill.cli.main import run
from inkmill.config.dataset import SourceSpec
from inkmill.data.sources import open_source

TAO_EXAMPLE = Path(__file__).parent.parent / "data" / "tao_example.yaml"


def test_a_folder_becomes_an_lmdb_and_nothing_else_is_left(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", str(some), str(tmp_path / "lmdb")]) == 0
    assert "40 samples" in capsys.readouterr().out
    assert len(open_source(SourceSpec(path=str(tmp_path / "lmdb")))) == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lmdb", "some"]


def test_the_kind_can_be_chosen_and_an_unknown_one_is_one_sentence(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", str(some), str(tmp_path / "csv"), "--to", "csv"]) == 0
    assert len(open_source(SourceSpec(path=str(tmp_path / "csv")))) == 40
    assert run(["convert", str(some), str(tmp_path / "x"), "--to", "lmbd"]) == 2
    assert "did you mean 'lmdb'?" in capsys.readouterr().err


def test_what_is_there_is_replaced_only_when_asked(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", str(some), str(tmp_path / "lmdb")]
    assert [run(command), run(command), run([*command, "--overwrite"])] == [0, 2, 0]
    assert "is not empty" in capsys.readouterr().err


def test_taos_spec_file_runs_with_the_keys_that_tao_users_give(some: Path, tmp_path: Path) -> None:
    lines = (some / "labels.tsv").read_text(encoding="utf-8").replace("images/", "").replace("\t", " ")
    (some / "gt_list.txt").write_text(lines, encoding="utf-8")
    command = [
        "dataset_convert",
        "-e",
        str(TAO_EXAMPLE),
        f"results_dir={tmp_path}/r",
        f"dataset_convert.input_img_dir={some}/images",
        f"dataset_convert.gt_file={some}/gt_list.txt",
    ]
    assert run(command) == 0
    assert len(open_source(SourceSpec(path=f"{tmp_path}/r/convert_dataset"))) == 40
    states = (tmp_path / "r" / "dataset_convert" / "status.json").read_text(encoding="utf-8").splitlines()
    assert json.loads(states[-1])["status"] == "SUCCESS"


def test_bad_images_are_counted_and_named(some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next((some / "images").iterdir()).write_bytes(b"not an image")
    assert run(["convert", str(some), str(tmp_path / "lmdb")]) == 0
    said = capsys.readouterr().out
    assert "39 samples" in said
    assert "1 left out" in said


def test_missing_and_unwritable_places_are_one_sentence(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for source, destination, said in (
        (tmp_path / "missing", tmp_path / "out", f"the data set {tmp_path / 'missing'} is not there"),
        (some, tmp_path / "file" / "out", f"{tmp_path / 'file'}"),
    ):
        assert run(["convert", str(source), str(destination)]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1
