"""Label formats of classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats import FORMATS, Entry
from inkmill.data.formats.detect import detect_format
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import open_source
from inkmill.data.types import Labels, Text
from inkmill.errors import DataError, LabelFileError

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0\r\n")
NAMES = st.text(CHARACTERS, min_size=1, max_size=6).map(str.strip).filter(bool)


def read(name: str, path: Path) -> list[tuple[str, Labels]]:
    return [(entry.image, entry.target) for entry in FORMATS.get(name)().read(path)]


def test_one_hot_columns_are_classes_and_blanks_are_unknown(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["a.png", "b.png", "c.png"])
    file = tmp_path / "train.csv"
    file.write_text("Path,cat,dog,bird\na.png,1,0,-1\nb.png,0.0,1.0,\nc.png,0,0,0\n")
    assert detect_format(tmp_path).format == "csv_one_hot"
    assert read("csv_one_hot", file) == [
        ("a.png", Labels(("cat",), ("bird",))),
        ("b.png", Labels(("dog",), ("bird",))),
        ("c.png", Labels(())),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,cat\na.png,2\n", r"classes.csv:2: .*expected 1, 0, -1 or nothing for 'cat' and found '2'"),
        ("path,cat,cat\na.png,1,0\n", "each class once"),
        ("path,cat\na.png,1,0\n", r"classes.csv:2: .*expected 2 columns and found 3"),
        ('path,cat\n"a.png,1\n', "not valid CSV"),
    ],
)
def test_a_wrong_one_hot_table_names_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "classes.csv").write_text(text)
    with pytest.raises(LabelFileError, match=said):
        read("csv_one_hot", tmp_path / "classes.csv")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(st.sets(NAMES, max_size=3), st.sets(NAMES, max_size=2)), max_size=5))
def test_one_hot_tables_read_back_what_they_wrote(rows: list[tuple[set[str], set[str]]], tmp_path: Path) -> None:
    fmt = FORMATS.get("csv_one_hot")()
    classes = sorted(set().union(*(shown | unknown for shown, unknown in rows)) if rows else set())
    targets = [
        Labels(tuple(c for c in classes if c in shown), tuple(c for c in classes if c in unknown - shown))
        for shown, unknown in rows
    ]
    fmt.write(tmp_path / "c.csv", [Entry(f"{i}.png", target, 1) for i, target in enumerate(targets)])
    if any(target.names or target.unknown for target in targets):
        assert [entry.target for entry in fmt.read(tmp_path / "c.csv")] == targets


def test_taos_multitask_table_gives_one_class_a_task(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["a.png", "b.png"])
    (tmp_path / "list.csv").write_text("fname,colour,shape\na.png,red,round\nb.png,,flat\n")
    assert detect_format(tmp_path).format == "csv_multitask"
    assert read("csv_multitask", tmp_path / "list.csv") == [
        ("a.png", Labels(("colour=red", "shape=round"))),
        ("b.png", Labels(("shape=flat",), ("colour=red",))),
    ]


def coco(**changes: object) -> str:
    found = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "annotations": [
            {"image_id": 1, "category_id": 7, "bbox": [0, 0, 2, 2]},
            {"image_id": 1, "category_id": 7, "bbox": [3, 3, 2, 2]},
            {"image_id": 1, "category_id": 9},
        ],
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
    }
    return json.dumps(found | changes)


def test_coco_categories_are_classes_by_presence(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["a.png", "b.png"])
    (tmp_path / "instances_val.json").write_text(coco())
    assert detect_format(tmp_path).format == "coco"
    assert read("coco", tmp_path / "instances_val.json") == [("a.png", Labels(("cat", "dog"))), ("b.png", Labels(()))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (coco(images=3), "expected a list of objects under 'images'"),
        (coco(annotations=[{"image_id": 5, "category_id": 7}]), "image 5 and category 7"),
        (coco(categories=[{"id": "x", "name": "cat"}]), "expected a whole number under 'id'"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_coco_file_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "instances.json").write_text(text)
    with pytest.raises(LabelFileError, match=said):
        read("coco", tmp_path / "instances.json")


def test_a_folder_is_a_class_and_deeper_folders_belong_to_it(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["cat/1.png", "cat/far/2.png", "dog/1.png"])
    assert read("class_folders", tmp_path) == [
        ("cat/1.png", Labels(("cat",))),
        ("cat/far/2.png", Labels(("cat",))),
        ("dog/1.png", Labels(("dog",))),
    ]


def test_an_image_in_no_folder_has_no_class(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["cat/1.png", "2.png"])
    with pytest.raises(LabelFileError, match="lies in no folder"):
        read("class_folders", tmp_path)
    assert FORMATS.get("class_folders")().detect(tmp_path, []) is None


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("class_folders", Labels(("a", "b"))),
        ("class_folders", Labels(("..",))),
        ("csv_one_hot", Text("a")),
        ("csv_multitask", Labels(("a",))),
        ("coco", Labels(("a",))),
    ],
)
def test_what_a_class_format_cannot_hold_is_refused(name: str, target: object, tmp_path: Path) -> None:
    fmt = FORMATS.get(name)()
    with pytest.raises(DataError):
        fmt.write(tmp_path / "x", [Entry("a.png", target, 1)])  # type: ignore[arg-type]


ROWS = "path,New York,dog\na.png,1,\nb.png,0,1\n"


@pytest.mark.parametrize("destination", ["shards", "csv_one_hot"])
def test_unknown_labels_and_names_with_spaces_survive_conversion(destination: str, tmp_path: Path, make_images) -> None:
    folder = make_images(tmp_path / "set", ["a.png", "b.png"])
    (folder / "classes.csv").write_text(ROWS)
    source = open_source(SourceSpec(path=str(folder)))
    convert(source, tmp_path / "out", destination)
    again = open_source(SourceSpec(path=str(tmp_path / "out")))
    expected = [Labels(("New York",), ("dog",)), Labels(("dog",))]
    assert [source.target(i) for i in range(2)] == expected
    assert [again.target(i) for i in range(2)] == expected


@pytest.mark.parametrize("destination", ["lmdb", "multilabel"])
def test_a_store_without_a_place_for_unknown_classes_refuses_them(
    destination: str, tmp_path: Path, make_images
) -> None:
    folder = make_images(tmp_path / "set", ["a.png", "b.png"])
    (folder / "classes.csv").write_text(ROWS.replace("New York", "cat"))
    report = convert(open_source(SourceSpec(path=str(folder))), tmp_path / "out", destination)
    assert report.rejected == {"label cannot be stored": 1}


@pytest.mark.parametrize("name", ["csv_one_hot", "csv_multitask"])
@pytest.mark.parametrize("line", ["a.png\tx\ry", "a" * 200_000, '"never closed'], ids=["bare CR", "very long", "quote"])
def test_a_line_that_is_no_csv_is_left_to_other_formats(name: str, line: str, tmp_path: Path) -> None:
    assert FORMATS.get(name)().detect(tmp_path / "labels.tsv", [line, line]) is None
