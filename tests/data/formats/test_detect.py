"""The format of a path is detected by its content, with reasons; an unknown one says what was tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats import FORMATS, LabelFormat
from inkmill.data.formats.base import by_specificity, list_images, register
from inkmill.data.formats.detect import detect_format, label_suffixes, with_format
from inkmill.data.sources import open_source
from inkmill.data.types import Text
from inkmill.errors import DataError

FILES = {
    "tsv": "images/a.png\tx\nimages/b.png\ty z\n",
    "gt_list": "images/a.png x\nimages/b.png y z\n",
    "csv": "image_name,label\nimages/a.png,x\n",
    "doctr": '{"images/a.png": "x"}',
    "easyocr": "filename,words\nimages/a.png,x\n",
    "icdar": '\ufeffimages/a.png, "x"\n',
}


@pytest.mark.parametrize("name", FILES)
def test_a_label_file_is_detected_by_its_content_whatever_its_name(name: str, tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["images/a.png", "images/b.png"])
    (tmp_path / "train.txt").write_text(FILES[name], "utf-8")
    for path in (tmp_path / "train.txt", tmp_path):
        detected = detect_format(path)
        assert (detected.format, detected.root, detected.labels) == (name, tmp_path, tmp_path / "train.txt")
        assert "of the first" in detected.why


def test_names_with_spaces_decide_for_tabs(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["my cat.png"])
    (tmp_path / "gt.txt").write_text("my cat.png\tx\n")
    assert detect_format(tmp_path / "gt.txt").format == "tsv"


def test_a_tab_after_a_name_and_spaces_are_read_as_the_disk_says(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["a.png"])
    (tmp_path / "gt.txt").write_text("a.png 12\tkg\n")
    assert detect_format(tmp_path / "gt.txt").format == "gt_list"


@pytest.mark.parametrize("place", ["images/a.png", "a.png", "../images/a.png", "../a.png"])
def test_the_folder_of_the_images_is_found(place: str, tmp_path: Path, make_images) -> None:
    folder = tmp_path / "set"
    make_images(folder, [place])
    (folder / "labels.tsv").write_text("a.png\tx\n")
    assert (detect_format(folder / "labels.tsv").root / "a.png").is_file()


def test_an_absolute_path_and_one_leading_out_are_found(tmp_path: Path, make_images) -> None:
    make_images(tmp_path / "elsewhere", ["a.png"])
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "labels.tsv").write_text(f"{tmp_path}/elsewhere/a.png\tx\n../elsewhere/a.png\ty\n")
    assert "2 of the first 2 images" in detect_format(tmp_path / "set").why


def test_our_own_and_foreign_notes_are_not_taken_for_labels(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["images/a.png"])
    (tmp_path / "labels.tsv").write_text("images/a.png\tx\n")
    for name in ("characters.txt", "README.txt", "manifest.json", "rejects.tsv"):
        (tmp_path / name).write_text("images/a.png\tx\n")
    assert detect_format(tmp_path).labels.name == "labels.tsv"


def test_several_label_files_are_a_question_for_the_user(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["images/a.png"])
    for name in ("train.tsv", "val.tsv"):
        (tmp_path / name).write_text("images/a.png\tx\n")
    with pytest.raises(DataError, match=r"several label files \(train\.tsv, val\.tsv\)"):
        detect_format(tmp_path)


def test_folders_without_a_label_file_are_read_by_text_files_or_names(tmp_path: Path, make_images) -> None:
    make_images(tmp_path / "named", ["0042.png"])
    make_images(tmp_path / "texts", ["1.png"])
    (tmp_path / "texts" / "1.txt").write_text("x")
    assert detect_format(tmp_path / "named").format == "filename"
    assert detect_format(tmp_path / "texts").format == "txt"


def test_images_not_found_are_reported_with_the_folders_searched(tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text("gone.png\tx\n")
    with pytest.raises(DataError, match=r"as tsv, none of the first 1 images is in") as caught:
        detect_format(tmp_path / "labels.tsv")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("text", "said"), [("", "it is empty"), ("nonsense\n", "its first line is 'nonsense'")])
def test_a_file_that_is_no_label_file_says_why(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(DataError, match=said):
        detect_format(tmp_path / "labels.txt")


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a label file, a data\.mdb, tar shards.*found no image"):
        detect_format(tmp_path)


def test_a_named_format_reports_its_own_first_error(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["a.png"])
    (tmp_path / "labels.txt").write_text("a.png x\n")
    with pytest.raises(DataError, match=r"labels\.txt:1: expected an image path, one TAB"):
        with_format(tmp_path / "labels.txt", "tsv")


def test_a_linked_folder_is_searched_once(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["a/1.png", "b/2.png", ".hidden/3.png"])
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert sorted(name.rpartition("/")[2] for name in list_images(tmp_path)) == ["1.png", "2.png"]


def test_folders_nest_deeper_than_python_calls_itself(tmp_path: Path, make_images) -> None:
    made = [tmp_path]
    for _ in range(1100):
        made.append(made[-1] / "d")
        made[-1].mkdir()
    assert list(list_images(tmp_path)) == []
    for folder in reversed(made[1:]):  # pytest removes them by recursion
        folder.rmdir()


@pytest.mark.parametrize("suffix", [".JPG", ".webp", ".bmp", ".tif", ".gif", ".PNG"])
def test_texts_beside_pictures_of_any_kind_are_theirs(suffix: str, tmp_path: Path, make_images) -> None:
    for number in range(3):
        make_images(tmp_path, [f"{number}.png"])
        (tmp_path / f"{number}.png").rename(tmp_path / f"{number}{suffix}")
        (tmp_path / f"{number}.txt").write_text("x")
    assert detect_format(tmp_path).format == "txt"


def test_a_line_that_is_too_long_to_be_a_name_is_none(tmp_path: Path, make_images) -> None:
    names = [f"{number:04d}.png" for number in range(30)]
    make_images(tmp_path, names)
    (tmp_path / "labels.json").write_text(json.dumps(dict.fromkeys(names, "New York 20")))
    assert detect_format(tmp_path).format == "doctr"


def test_a_label_file_whose_name_begins_like_a_dictionarys_is_one(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["images/0000.1.png"])
    (tmp_path / "dictation.tsv").write_text("images/0000.1.png\tten words\n")
    for name in ("dict.txt", "vocab_vi.txt", "Dictionary.txt", "LICENSE.txt"):
        (tmp_path / name).write_text("a\nb\n")
    assert detect_format(tmp_path).labels.name == "dictation.tsv"


def test_a_lone_surrogate_in_json_is_kept_and_a_huge_number_refused(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["images/a.png"])
    (tmp_path / "labels.json").write_text('{"images/a.png": "\\ud800"}')
    assert open_source(SourceSpec(path=str(tmp_path))).target(0) == Text("\ud800")
    (tmp_path / "labels.json").write_text(f'{{"images/a.png": {"1" * 5000}}}')
    with pytest.raises(DataError, match=r"labels\.json"):
        open_source(SourceSpec(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        (
            {"name": "new", "title": "t", "example": "e", "file_name": "f"},
            "needs the class attributes specificity",
        ),
        ({"name": "new", "title": "t", "example": "e", "file_name": "f", "specificity": 30}, "the same specificity"),
    ],
    ids=["forgotten", "taken"],
)
def test_a_format_without_a_specificity_of_its_own_is_not_registered(attributes: dict[str, object], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"(?i){error}"):
        register(type("New", (LabelFormat,), attributes))
    assert "new" not in FORMATS


def test_the_page_of_formats_lists_every_format_and_the_order_of_detection() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text("utf-8")
    rows = {cells[1].strip(" `"): cells for line in page.splitlines() if len(cells := line.split("|")) == 6}
    assert set(FORMATS.names()) <= set(rows)
    for name in FORMATS.names():
        assert FORMATS.get(name).file_name in rows[name][4]
    order = ", ".join(f"`{fmt.name}`" for fmt in by_specificity(of_folder=False))
    assert order in page.replace("\n   ", " ")


@pytest.mark.parametrize("name", [fmt.name for fmt in by_specificity(of_folder=False)])
def test_a_folder_is_searched_for_the_label_file_that_a_format_writes(name: str) -> None:
    assert Path(FORMATS.get(name).file_name).suffix in label_suffixes()
