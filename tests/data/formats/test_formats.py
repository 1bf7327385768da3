"""What each label format makes of a line, from the tools that write it; every wrong line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from inkmill.data.formats import FORMATS
from inkmill.data.types import Labels, Text
from inkmill.errors import ConfigError, LabelFileError

READ = [
    ("tsv", "a.png\tNew York\nb.png\t\n", [("a.png", "New York"), ("b.png", "")]),
    ("tsv", '["a.jpg", "b.jpg"]\tHà Nội\n', [("a.jpg", "Hà Nội"), ("b.jpg", "Hà Nội")]),
    ("tsv", "my file.png\t x \n", [("my file.png", " x ")]),
    (
        "gt_list",
        "a.png New York\nb.png\tNew  York\nc.png\n",
        [("a.png", "New York"), ("b.png", "New  York"), ("c.png", "")],
    ),
    ("gt_list", "a.png \t 12\u00a0kg \n", [("a.png", "12\u00a0kg")]),
    (
        "csv",
        'image_name,label\na.png,NA\nb.png,"x, ""y"""\nc.png,\n',
        [("a.png", "NA"), ("b.png", 'x, "y"'), ("c.png", "")],
    ),
    ("csv", "label,id,file_name\nnull,7,a.png\n", [("a.png", "null")]),
    ("doctr", '{"a.png": "\\u0110",\n "b.png": ""}', [("a.png", "Đ"), ("b.png", "")]),
    ("easyocr", 'filename,words\na.png,New York, NY\nb.png,"q"\n', [("a.png", "New York, NY"), ("b.png", '"q"')]),
    ("icdar", 'word_1.png, "Hi"\nword_2.png, "\\"no\\", he"\n', [("word_1.png", "Hi"), ("word_2.png", '"no", he')]),
]

WRONG = [
    ("tsv", "a.png\tx\nb.png y\n", 2, "one TAB"),
    ("tsv", "a.png\tx\ty\n", 1, "found more"),
    ("tsv", 'a.png\t[{"transcription": "x", "points": [[0, 0]]}]\n', 1, "detection"),
    ("tsv", "[1]\tx\n", 1, "JSON list"),
    ("csv", "name,words2\na.png,x\n", 1, "image_name,label"),
    ("csv", "image_name,label\n\na.png\n", 3, "columns"),
    ("csv", 'image_name,label\na.png,"x\n', 2, "CSV"),
    ("doctr", '{"a.png": "x",\n "b.png": 7}', 2, "int"),
    ("doctr", '{"a.png": "x",\n "a.png": "y"}', 2, "twice"),
    ("doctr", '{"a.png": {"polygons": []}}', 1, "detection"),
    ("doctr", '{"a.png": "x"\n "b.png": "y"}', 2, "JSON"),
    ("doctr", '{"a.png": "x"} {', 1, "JSON"),
    ("doctr", '{"a": ' + "[" * 100_000, 1, "nested"),
    ("easyocr", "filename,words\na.png\n", 2, "comma"),
    ("easyocr", "a.png,x\n", 1, "header"),
    ("icdar", 'word_1.png, "Hi"\nword_2.png, Hi\n', 2, "quoted"),
]


@pytest.mark.parametrize(("name", "text", "expected"), READ)
def test_texts_are_read_as_the_tool_wrote_them(
    name: str, text: str, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "labels"
    path.write_text(text, "utf-8", newline="")
    assert [(e.image, e.target.value) for e in FORMATS.get(name)().read(path) if isinstance(e.target, Text)] == expected


@pytest.mark.parametrize(("name", "text", "line", "what"), WRONG)
def test_a_wrong_line_is_named_with_file_and_line(name: str, text: str, line: int, what: str, tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_text(text, "utf-8", newline="")
    with pytest.raises(LabelFileError, match=what) as caught:
        list(FORMATS.get(name)().read(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_multilabel_lists_hold_any_number_of_names(tmp_path: Path) -> None:
    (tmp_path / "labels.ssv").write_text("a.jpg cat  outdoors\nb.jpg\nc.jpg\tdog\n")
    targets = [entry.target for entry in FORMATS.get("multilabel")().read(tmp_path / "labels.ssv")]
    assert targets == [Labels(("cat", "outdoors")), Labels(()), Labels(("dog",))]


def test_unicode_line_separators_are_characters_of_a_label(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("a.png\tx\u2028y\u0085z\n", "utf-8")
    assert next(FORMATS.get("tsv")().read(tmp_path / "labels")).target == Text("x\u2028y\u0085z")


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(b"a.png\tx\nb.png\t\xff\n")
    with pytest.raises(LabelFileError, match=r"labels:2: byte 0xff is not UTF-8"):
        list(FORMATS.get("tsv")().read(tmp_path / "labels"))


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(b"a.png\tx\n" + b"x" * (3 << 20))
    with pytest.raises(LabelFileError, match=r"labels:2: the line is over 1 MiB"):
        list(FORMATS.get("tsv")().read(tmp_path / "labels"))


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabelFileError, match="no such file"):
        list(FORMATS.get("csv")().read(tmp_path / "labels.csv"))


def test_texts_lie_beside_the_images_or_in_a_label_folder(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["IMG/1.png", "IMG/2.jpg", "more/3.png"])
    (tmp_path / "label").mkdir()
    (tmp_path / "label" / "1.txt").write_text("\ufeffmột\r\n", "utf-8")
    (tmp_path / "label" / "2.txt").write_text("")
    (tmp_path / "more" / "3.txt").write_text("ba")
    entries = list(FORMATS.get("txt")().read(tmp_path))
    assert [(e.image, e.target) for e in entries] == [
        ("IMG/1.png", Text("một")),
        ("IMG/2.jpg", Text("")),
        ("more/3.png", Text("ba")),
    ]


def test_an_image_without_its_text_is_named(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["1.png", "2.png"])
    (tmp_path / "1.txt").write_text("x")
    with pytest.raises(LabelFileError, match=r"2\.png: no text for this image: expected 2\.txt"):
        list(FORMATS.get("txt")().read(tmp_path))


def test_labels_in_file_names_follow_the_pattern(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["0042.png", "0042.1.png", "sub/Xk.jpg"])
    assert [e.target for e in FORMATS.get("filename")().read(tmp_path)] == [Text("0042"), Text("0042"), Text("Xk")]
    make_images(tmp_path / "v2", ["0007_AB-1.png"])
    entries = list(FORMATS.get("filename")(r"\d+_(?P<label>\w+)-\d").read(tmp_path / "v2"))
    assert entries[0].target == Text("AB")


@pytest.mark.parametrize("pattern", ["(", r"(\w+)"])
def test_a_pattern_that_cannot_work_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(ConfigError, match="label_pattern"):
        FORMATS.get("filename")(pattern)


def test_a_name_that_does_not_match_the_pattern_is_named(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["7.png", "x.png"])
    with pytest.raises(LabelFileError, match=r"x\.png: the name does not match label_pattern"):
        list(FORMATS.get("filename")(r"(?P<label>\d+)").read(tmp_path))


@pytest.mark.parametrize("label", ["a/b", "1.5", "", "x?", "a\\b", " a"])
def test_labels_that_no_file_name_can_carry_are_refused(label: str) -> None:
    assert FORMATS.get("filename")().refuses("x.png", Text(label))


def test_an_unknown_format_names_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'easyocr'"):
        FORMATS.get("easy_ocr")
