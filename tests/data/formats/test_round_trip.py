"""What a format writes, it reads back; what it reads that is not its own is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inkmill.data.formats import FORMATS, Entry
from inkmill.data.types import Labels, Text
from inkmill.errors import DataError, LabelFileError

QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
FILES = [name for name in FORMATS.names() if not FORMATS.get(name)().of_folder and not name.endswith("_det")]
CLASS_FILES = {"multilabel", "csv_one_hot", "csv_multitask", "coco"}
TEXT_FILES = [name for name in FILES if name not in CLASS_FILES]
WRITTEN = [name for name in FILES if name not in ("csv_multitask", "coco")]

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).map(lambda stem: f"{stem}.png")
labels = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["NA", "null", 'say "hi"', "a, b", "Đường 7"]
)


@pytest.mark.parametrize("name", TEXT_FILES)
@QUICK
@given(pairs=st.lists(st.tuples(names, labels), max_size=6, unique_by=lambda pair: pair[0]))
def test_entries_that_a_format_accepts_come_back_the_same(
    name: str, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    fmt = FORMATS.get(name)()
    entries = [Entry(image, Text(label), 1) for image, label in pairs if not fmt.refuses(image, Text(label))]
    path = tmp_path / fmt.file_name
    fmt.write(path, entries)
    assert [(e.image, e.target) for e in fmt.read(path)] == [(e.image, e.target) for e in entries]


@QUICK
@given(classes=st.lists(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=3), max_size=5))
def test_class_names_come_back_the_same(classes: list[list[str]], tmp_path: Path) -> None:
    fmt = FORMATS.get("multilabel")()
    targets = [Labels(tuple(some)) for some in classes if not fmt.refuses("a.png", Labels(tuple(some)))]
    fmt.write(tmp_path / "labels.ssv", [Entry("a.png", target, 1) for target in targets])
    assert [entry.target for entry in fmt.read(tmp_path / "labels.ssv")] == targets


@pytest.mark.parametrize("name", FILES)
@QUICK
@given(data=st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused_with_file_and_line(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "labels.any"
    path.write_bytes(data)
    entries, refusal = [], str(path)
    try:
        entries.extend(FORMATS.get(name)().read(path))
    except LabelFileError as error:
        refusal = str(error)
    assert refusal.startswith(str(path))
    assert all(entry.image and entry.line >= 1 for entry in entries)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_byte_order_marks_and_both_line_ends_are_accepted(
    name: str, newline: str, encoding: str, tmp_path: Path
) -> None:
    fmt = FORMATS.get(name)()
    target = Labels(("Đường",)) if name in CLASS_FILES else Text("Đường")
    fmt.write(tmp_path / "plain", [Entry("a.png", target, 1), Entry("b.png", target, 1)])
    text = (tmp_path / "plain").read_text("utf-8").replace("\n", newline)
    (tmp_path / "other").write_bytes(text.encode(encoding))
    assert [(entry.image, entry.target) for entry in fmt.read(tmp_path / "other")] == [
        ("a.png", target),
        ("b.png", target),
    ]


@pytest.mark.parametrize("name", FILES)
def test_writing_what_the_format_cannot_hold_is_refused_and_leaves_the_old_file(name: str, tmp_path: Path) -> None:
    fmt = FORMATS.get(name)()
    path = tmp_path / "labels"
    path.write_text("old")
    bad = Labels(("two words",)) if name == "multilabel" else Text("half of a pair: \ud800")
    with pytest.raises(DataError, match=r"'a\.png' cannot be written in the format"):
        fmt.write(path, [Entry("a.png", bad, 1)])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
