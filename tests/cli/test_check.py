from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.cli.main import run
from inkmill.data.pipeline.decode import decode


def test_a_good_set_leaves_its_page_and_exit_code_0(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(some), f"results_dir={tmp_path}/r"]) == 0
    assert "40" in capsys.readouterr().out
    assert (tmp_path / "r" / "check" / "check.html").stat().st_size > 1000
    (report,) = json.loads((tmp_path / "r" / "check" / "check.json").read_text(encoding="utf-8")).values()
    assert (report["samples"], report["kept"]) == (40, 40)
    last = (tmp_path / "r" / "check" / "status.json").read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last)["status"] == "SUCCESS"


def test_what_would_be_lost_is_named_and_too_much_of_it_is_exit_code_1(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for image in sorted((some / "images").iterdir())[:4]:
        image.write_bytes(b"not an image")
    assert run(["check", str(some), f"results_dir={tmp_path}/r"]) == 1
    said = capsys.readouterr().out
    assert "unreadable" in said
    assert "36" in said
    assert run(["check", str(some), f"results_dir={tmp_path}/r", "dataset.max_lost=0.2"]) == 0


def test_labels_that_the_input_is_too_narrow_for_are_found(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(some), f"results_dir={tmp_path}/r", "model.input_width=8"]) == 1
    assert "too narrow" in capsys.readouterr().out


def test_two_sets_are_checked_beside_each_other(some: Path, tmp_path: Path) -> None:
    shutil.copytree(some, tmp_path / "other" / "some")
    assert run(["check", str(some), str(tmp_path / "other" / "some"), f"results_dir={tmp_path}/r"]) == 0
    assert len(json.loads((tmp_path / "r" / "check" / "check.json").read_text(encoding="utf-8"))) == 2


def test_validation_images_that_training_shows_too_are_named(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A validation set of six training images, three of them saved again smaller, as JPEG.
    val = tmp_path / "val"
    val.mkdir()
    rows = [line.split("\t") for line in (some / "labels.tsv").read_text("utf-8").splitlines()][:6]
    for number, (name, _) in enumerate(rows):
        if number < 3:
            shutil.copy(some / name, val / f"{number}.png")
        else:
            image = cv2.resize(
                decode((some / name).read_bytes(), 3), None, fx=0.9, fy=0.9, interpolation=cv2.INTER_AREA
            )
            (val / f"{number}.png").write_bytes(cv2.imencode(".jpg", image[..., ::-1])[1].tobytes())
    (val / "labels.tsv").write_text("".join(f"{n}.png\t{text}\n" for n, (_, text) in enumerate(rows)), "utf-8")
    settings = [f"dataset.train={some}", f"dataset.val={val}", f"results_dir={tmp_path}/r"]
    assert run(["check", *settings]) == 0
    said = capsys.readouterr().out
    assert "3 images are also in" in said
    assert "3 images look like images of" in said
    assert "3.png" in (tmp_path / "r" / "check" / "check.html").read_text("utf-8")
    # Held out of one set: copies under other names leak as well.
    for name, _ in rows:
        shutil.copy(some / name, (some / name).with_stem(f"copy-{Path(name).stem}"))
    both = "".join(
        f"{name}\t{text}\n{Path(name).with_stem(f'copy-{Path(name).stem}')}\t{text}\n" for name, text in rows
    )
    (some / "labels.tsv").write_text(both, "utf-8")
    assert run(["check", str(some), f"results_dir={tmp_path}/r", "dataset.val_fraction=0.4"]) == 0
    assert "would be held out for validation are copies of others" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["check", "train"])
def test_missing_and_empty_sets_are_one_sentence(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("missing", "empty"):
        assert run([verb, str(tmp_path / place), f"results_dir={tmp_path}/r"]) == 2
        said = capsys.readouterr().err
        assert str(tmp_path / place) in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("verb", ["check", "train"])
def test_a_place_that_cannot_be_written_is_one_sentence(
    verb: str, some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run([verb, str(some), f"results_dir={tmp_path}/file"]) == 2
    assert f"cannot write {tmp_path}/file/{verb}: a part of the path is a file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_the_status_says_failure(some: Path, tmp_path: Path) -> None:
    limited = (
        "import resource, signal\n"
        "from inkmill.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "main()\n"
    )
    command = [sys.executable, "-c", limited, "check", str(some), f"results_dir={tmp_path}/r"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    place = tmp_path / "r" / "check"
    assert (
        ended.stderr == f"inkmill: cannot write {place}/check.html: the file would be larger than this system allows\n"
    )
    assert sorted(path.name for path in place.iterdir()) == ["experiment.yaml", "status.json"]
    assert json.loads((place / "status.json").read_text(encoding="utf-8").splitlines()[-1])["status"] == "FAILURE"


def test_names_that_hold_more_than_labels_get_a_pattern_and_lines_their_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named, lines = tmp_path / "named", tmp_path / "lines"
    for folder in (named, lines):
        folder.mkdir()
    for number in range(4):
        cv2.imwrite(str(named / f"12{number}4_{'0a1b2c3d' * 4}{number}.png"), np.zeros((20, 60, 3), np.uint8))
        cv2.imwrite(str(lines / f"{number}.png"), np.zeros((20, 200, 3), np.uint8))
    (lines / "labels.tsv").write_text("".join(f"{number}.png\t{'a line of text ' * 4}\n" for number in range(4)))
    said = []
    for folder in (named, lines):
        assert run(["check", str(folder), f"results_dir={tmp_path}/r"]) == 1
        said.append(capsys.readouterr().out)
    assert "dataset.label_pattern='(?P<label>[^_]+)_.*' takes the first part" in said[0]
    assert "its pictures are 10 times as wide as high, as lines of text are: the preset for them is -e line" in said[1]
