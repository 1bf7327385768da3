"""What training makes of its sets: parts, characters, and the same judgement as `inkmill check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.cli.main import run
from inkmill.config.load import load_spec
from inkmill.errors import DataError
from inkmill.training.prepare import Prepared, prepare

Labelled = Callable[[list[str]], Path]


def prepared(folder: Path, *overrides: str) -> Prepared:
    given = [f"dataset.train={folder}", *overrides]
    return prepare(load_spec("captcha", given), folder.parent / "check", lambda line: None)


def check(folder: Path, tmp_path: Path, *overrides: str) -> int:
    return run(["check", str(folder), "-e", "captcha", f"results_dir={tmp_path / 'results'}", *overrides])


@pytest.fixture
def labelled(tmp_path: Path) -> Labelled:
    def make(labels: list[str]) -> Path:
        folder = tmp_path / "set"
        folder.mkdir()
        rng = np.random.default_rng(0)
        for number in range(len(labels)):
            cv2.imwrite(f"{folder}/{number}.png", rng.integers(0, 256, (20, 50, 3), np.uint8))
        (folder / "labels.tsv").write_text("".join(f"{n}.png\t{label}\n" for n, label in enumerate(labels)), "utf-8")
        return folder

    return make


def test_characters_that_occur_once_are_learned_wherever_their_sample_falls(labelled: Labelled, tmp_path: Path) -> None:
    folder = labelled([chr(0x4E00 + number) for number in range(60)])
    assert check(folder, tmp_path) == 0
    found = prepared(folder)
    assert len(found.task.charset) == 60
    assert len(found.train.source) + len(found.val["set/labels.tsv"].source) == 60


def test_a_damaged_picture_counts_against_the_whole_set_not_its_small_part(labelled: Labelled, tmp_path: Path) -> None:
    folder = labelled(["12"] * 60)
    whole = prepared(folder)
    held = {whole.val["set/labels.tsv"].source.key(index) for index in range(len(whole.val["set/labels.tsv"].source))}
    (folder / sorted(held)[0]).write_bytes(b"no picture")
    assert check(folder, tmp_path) == 0
    found = prepared(folder)
    assert len(found.val["set/labels.tsv"].source) == len(held) - 1
    assert (found.train.lost, found.val["set/labels.tsv"].lost) == ({"unreadable": 1}, {})
    with pytest.raises(DataError, match=r"1.7% of its samples cannot be used \(1 unreadable\)"):
        prepared(folder, "dataset.max_lost=0.01")
    assert check(folder, tmp_path, "dataset.max_lost=0.01") == 1


def test_parts_of_free_width_have_the_widths_of_their_own_samples(labelled: Labelled) -> None:
    found = prepared(labelled(["12"] * 60), "model.input_resize=height", "dataset.max_lost=1")
    for one in (found.train, found.val["set/labels.tsv"]):
        assert one.bucket_widths is not None
        assert one.bucket_widths.shape == (len(one.source),)


def test_class_names_are_refused_by_check_and_by_training(
    labelled: Labelled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = labelled(["12"] * 30)
    (folder / "labels.tsv").unlink()
    (folder / "labels.ssv").write_text("".join(f"{number}.png cat dog\n" for number in range(30)))
    (tmp_path / "list.txt").write_text("c\na\nt\n")
    characters = f"dataset.character_list_file={tmp_path / 'list.txt'}"
    one = f"dataset.train=[{{path: {folder}, format: multilabel}}]"
    for overrides, code, said in (
        ([], 2, "text reader learns from texts"),
        ([characters], 1, "it has labels, not a text"),
    ):
        assert run(["check", one, f"results_dir={tmp_path / 'results'}", *overrides]) == code
        assert said in "".join(capsys.readouterr())
        with pytest.raises(DataError, match=r"no text|learns from texts"):
            prepare(load_spec("captcha", [one, *overrides]), tmp_path / "check", lambda line: None)


def test_too_few_usable_samples_for_two_parts_are_one_sentence(labelled: Labelled) -> None:
    folder = labelled(["12"] * 12)
    for number in range(1, 12):
        (folder / f"{number}.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"1 of its 12 samples can be used, and none of the \d+ of one"):
        prepared(folder, "dataset.max_lost=1")
