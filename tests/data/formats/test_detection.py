"""Label formats of text detection: regions with texts, and regions to ignore."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats import FORMATS, Entry
from inkmill.data.formats.detect import detect_format
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import open_source
from inkmill.data.types import Polygons, Target, Text
from inkmill.errors import DataError, LabelFileError

QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
PADDLE = """images/a.png\t[{"transcription": "Hà Nội, 7", "points": [[1, 2], [9, 2.5], [9, 7], [1, 7]]}, \
{"transcription": "###", "points": [[0, 0], [5, 0], [5, 5]], "difficult": true}]
images/b.png\t[]
"""
ICDAR = "\ufeff1,2,9,2.5,9,7,1,7,Hà Nội, 7\r\n0,0,5,0,5,5,0,5,###\r\n"


def facts(target: Target) -> tuple[list[list[list[float]]], tuple[bool, ...], tuple[str, ...]]:
    assert isinstance(target, Polygons)
    assert all(points.dtype == np.float32 for points in target.points)
    return [points.tolist() for points in target.points], target.ignore, target.texts


def test_paddle_lines_hold_regions(tmp_path: Path) -> None:
    (tmp_path / "Label.txt").write_text(PADDLE, "utf-8")
    entries = list(FORMATS.get("paddle_det")().read(tmp_path / "Label.txt"))
    assert [entry.image for entry in entries] == ["images/a.png", "images/b.png"]
    corners = [[[1, 2], [9, 2.5], [9, 7], [1, 7]], [[0, 0], [5, 0], [5, 5]]]
    assert facts(entries[0].target) == (corners, (False, True), ("Hà Nội, 7", ""))
    assert facts(entries[1].target) == ([], (), ())


@pytest.mark.parametrize("place", ["gt_img_1.txt", "train_gt/gt_img_1.txt"])
def test_icdar_files_hold_regions_beside_the_image_or_elsewhere(place: str, tmp_path: Path, make_images) -> None:
    image = "img_1.png" if "/" not in place else "train_images/img_1.png"
    make_images(tmp_path, [image])
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(ICDAR, "utf-8", newline="")
    (entry,) = FORMATS.get("icdar_det")().read(tmp_path)
    assert entry.image == image
    corners = [[[1, 2], [9, 2.5], [9, 7], [1, 7]], [[0, 0], [5, 0], [5, 5], [0, 5]]]
    assert facts(entry.target) == (corners, (False, True), ("Hà Nội, 7", ""))
    assert detect_format(tmp_path).format == "icdar_det"


WRONG_PADDLE = [
    ("a.png []", "one TAB"),
    ("a.png\tx", "JSON list"),
    ("a.png\t{}", "JSON list"),
    ("a.png\t" + "[" * 100_000, "JSON list"),
    ('a.png\t[{"points": [[0, 0], [1, 0], [1, 1]]}]', "region 1: expected"),
    ('a.png\t[{"transcription": "x", "points": [[0, 0], [1, 0]]}]', "at least three points"),
    ('a.png\t[{"transcription": "x", "points": [[0, 0], [1, 0], [1]]}]', "at least three points"),
    ('a.png\t[{"transcription": "x", "points": [[0, 0], [1, 0], [1, NaN]]}]', "at least three points"),
    ('a.png\t[{"transcription": "x", "points": [[0, 0], [1, 0], [1, "y"]]}]', "at least three points"),
    ('a.png\t[{"transcription": "x", "points": 7}]', "at least three points"),
]


@pytest.mark.parametrize(("line", "what"), WRONG_PADDLE)
def test_a_wrong_paddle_line_is_named(line: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "Label.txt").write_text(f"ok.png\t[]\n{line}\n", "utf-8")
    with pytest.raises(LabelFileError, match=f"Label.txt:2: .*{what}"):
        list(FORMATS.get("paddle_det")().read(tmp_path / "Label.txt"))


@pytest.mark.parametrize("line", ["1,2,3,4,5,6,7,8", "1,2,3,4,5,6,7,x,y", "1,2,3,4,5,6,7,nan,y", "word"])
def test_a_wrong_icdar_line_is_named(line: str, tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["img_1.png"])
    (tmp_path / "gt_img_1.txt").write_text(f"0,0,5,0,5,5,0,5,ok\n{line}\n")
    with pytest.raises(LabelFileError, match=r"gt_img_1\.txt:2: expected eight numbers and a text"):
        list(FORMATS.get("icdar_det")().read(tmp_path))


def test_an_image_without_regions_and_one_with_two_files_are_named(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["images/img_1.png"])
    with pytest.raises(LabelFileError, match=r"img_1\.png: no regions for this image: expected gt_img_1\.txt under"):
        list(FORMATS.get("icdar_det")().read(tmp_path))
    for place in ("old", "new"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "gt_img_1.txt").write_text("")
    with pytest.raises(LabelFileError, match="keep one"):
        list(FORMATS.get("icdar_det")().read(tmp_path))


numbers = st.floats(-1e6, 1e6, width=32)
texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["###", "*", "a, b", 'say "hi"', ""])


@st.composite
def polygons(draw: st.DrawFn) -> Polygons:
    flags = draw(st.lists(st.booleans(), max_size=4))
    sizes = [draw(st.sampled_from([4, 4, 5])) for _ in flags]
    points = [np.array(draw(st.lists(st.tuples(numbers, numbers), min_size=n, max_size=n)), np.float32) for n in sizes]
    return Polygons(tuple(points), tuple(flags), tuple("" if flag else draw(texts) for flag in flags))


@pytest.mark.parametrize("name", ["paddle_det", "icdar_det"])
@QUICK
@given(target=polygons())
def test_regions_that_a_format_accepts_come_back_the_same(
    name: str, target: Polygons, tmp_path: Path, make_images
) -> None:
    fmt = FORMATS.get(name)()
    path = tmp_path / fmt.file_name
    if fmt.of_folder:
        make_images(tmp_path, ["img_1.png"])
    if fmt.refuses("img_1.png", target) is None:
        fmt.write(path, [Entry("img_1.png", target, 1)])
        (entry,) = fmt.read(path)
        assert entry.image == "img_1.png"
        assert facts(entry.target) == facts(target)
    else:
        with pytest.raises(DataError, match="cannot be written in the format"):
            fmt.write(path, [Entry("img_1.png", target, 1)])


@QUICK
@given(data=st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
@pytest.mark.parametrize("name", ["Label.txt", "gt_img_1.txt"])
def test_any_bytes_are_read_or_refused_with_file_and_line(name: str, data: bytes, tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["img_1.png"])
    (tmp_path / name).write_bytes(data)
    fmt = FORMATS.get("paddle_det" if name == "Label.txt" else "icdar_det")()
    refusal = str(tmp_path / name)
    try:
        list(fmt.read(tmp_path / fmt.file_name))
    except LabelFileError as error:
        refusal = str(error)
    assert refusal.startswith(str(tmp_path / name))


square = np.array([(0, 0), (4, 0), (4, 4), (0, 4)], np.float32)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Text("x"), "holds text regions"),
        (Polygons((square,), (True,), ("hidden",)), "to be ignored"),
        (Polygons((square,), (False,), ("###",)), "would mark"),
        (Polygons((square[:2],), (False,), ("x",)), "less than three points"),
        (Polygons((square,), (False, True), ("x",)), "2 flags"),
    ],
)
def test_what_cannot_be_written_is_refused(target: Target, why: str) -> None:
    for name in ("paddle_det", "icdar_det"):
        assert why in (FORMATS.get(name)().refuses("a.png", target) or "")


def test_a_detection_set_opens_as_polygons_and_converts_both_ways(tmp_path: Path, make_images) -> None:
    make_images(tmp_path / "set", ["img_1.png", "img_2.png"])
    for number in (1, 2):
        (tmp_path / "set" / f"gt_img_{number}.txt").write_text(ICDAR, "utf-8", newline="")
    icdar = open_source(SourceSpec(path=str(tmp_path / "set")))
    convert(icdar, tmp_path / "paddle", "paddle_det")
    paddle = open_source(SourceSpec(path=str(tmp_path / "paddle")))
    assert "read as paddle_det" in paddle.notes[0]  # type: ignore[attr-defined]
    convert(paddle, tmp_path / "back", "icdar_det")
    back = open_source(SourceSpec(path=str(tmp_path / "back")))
    assert len(icdar) == len(paddle) == len(back) == 2
    for index in range(2):
        assert facts(icdar.target(index)) == facts(paddle.target(index)) == facts(back.target(index))
        assert icdar.get(index).image == back.get(index).image


def test_a_corner_beyond_all_pictures_is_a_mistake_in_its_line(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["a.png"])
    (tmp_path / "gt_a.txt").write_text("1e99,2,9,2,9,7,1,7,x\n", "utf-8")
    with pytest.raises(LabelFileError, match=r"gt_a\.txt:1: a corner lies further than"):
        list(FORMATS.get("icdar_det")().read(tmp_path))
