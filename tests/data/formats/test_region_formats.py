"""Every format of text regions: its exact shape, its quirks, that it is recognised, and that nonsense is one error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats import FORMATS, Entry
from inkmill.data.formats.detect import detect_format, with_format
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import open_source
from inkmill.data.types import Polygons
from inkmill.errors import DataError, LabelFileError

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
QUAD = [[10, 8], [90, 8], [90, 30], [10, 30]]
FLAT = [10, 8, 90, 8, 90, 30, 10, 30]
CURVE = [
    10,
    8,
    *(number for x in range(20, 80, 10) for number in (x, 8)),
    *(n for x in range(80, 10, -10) for n in (x, 30)),
]
HI, SKIP = ("Hi, you", False), ("", True)

COCO = {
    "images": [{"id": 3, "file_name": "a.png"}, {"id": 4, "file_name": "b.png"}],
    "categories": [{"id": 1, "name": "text"}],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 1, "segmentation": [FLAT], "text": "Hi, you", "iscrowd": 0},
        {"id": 2, "image_id": 3, "category_id": 1, "bbox": [10, 8, 80, 22], "iscrowd": 1},
    ],
}
COCO_TEXT = {
    "imgs": {"3": {"file_name": "a.png"}, "4": {"file_name": "b.png"}},
    "anns": {
        "1": {"image_id": 3, "mask": FLAT, "utf8_string": "Hi, you", "legibility": "legible"},
        "2": {"image_id": 3, "bbox": [10, 8, 80, 22], "utf8_string": "", "legibility": "illegible"},
    },
    "imgToAnns": {"3": [1, 2], "4": []},
}
TEXT_OCR = {
    "imgs": {"x": {"file_name": "a.png"}, "y": {"file_name": "b.png"}},
    "anns": {
        "x_1": {"image_id": "x", "points": FLAT, "utf8_string": "Hi, you"},
        "x_2": {"image_id": "x", "points": FLAT, "utf8_string": "."},
    },
    "imgToAnns": {"x": ["x_1", "x_2"]},
}
ART = {
    "a.png": [
        {"transcription": "Hi, you", "points": QUAD, "language": "Latin", "illegibility": False},
        {"transcription": "###", "points": QUAD, "language": "Latin", "illegibility": True},
    ],
    "b.png": [],
}
MMOCR = {
    "metainfo": {"task_name": "textdet"},
    "data_list": [
        {
            "img_path": "a.png",
            "instances": [
                {"polygon": FLAT, "ignore": False, "text": "Hi, you"},
                {"bbox": [10, 8, 90, 30], "ignore": True},
            ],
        },
        {"img_path": "b.png", "instances": []},
    ],
}
DOCTR = {
    "a.png": {"img_dimensions": [40, 100], "img_hash": "x", "polygons": [QUAD]},
    "b.png": {"img_dimensions": [40, 100], "img_hash": "x", "polygons": {"words": []}},
}
VIA = {
    "_via_img_metadata": {
        "a.png12": {
            "filename": "a.png",
            "regions": [
                {
                    "shape_attributes": {"name": "polygon", "all_points_x": FLAT[::2], "all_points_y": FLAT[1::2]},
                    "region_attributes": {"Text": "Hi, you"},
                },
                {
                    "shape_attributes": {"name": "rect", "x": 10, "y": 8, "width": 80, "height": 22},
                    "region_attributes": {"ignore": "yes"},
                },
                {"shape_attributes": {"name": "point", "cx": 1, "cy": 2}, "region_attributes": {}},
            ],
        },
        "b.png34": {"filename": "b.png", "regions": {}},
    }
}
SIDES = {"original_width": 200, "original_height": 100}
STUDIO = [
    {
        "data": {"ocr": "/data/local-files/?d=a.png"},
        "annotations": [
            {
                "result": [
                    {"id": "r", "type": "rectangle", **SIDES, "value": {"x": 5, "y": 8, "width": 40, "height": 22}},
                    {"id": "r", "type": "textarea", **SIDES, "value": {"text": ["Hi, you"]}},
                ]
            }
        ],
    },
    {"data": {"ocr": "/data/upload/7/b.png"}, "annotations": []},
]
CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version>
 <image id="0" name="a.png" width="100" height="40">
  <polygon label="text" occluded="0" points="10.00,8.00;90.00,8.00;90.00,30.00;10.00,30.00">
   <attribute name="transcription">Hi, you</attribute></polygon>
  <box label="text" xtl="10" ytl="8" xbr="90" ybr="30"><attribute name="ignore">true</attribute></box>
  <points label="text" points="1,2"></points>
 </image>
 <image id="1" name="b.png" width="100" height="40"></image>
</annotations>
"""
WILD = {"file_name": "a.png", "annotations": [{"box": FLAT, "text": "Hi, you", "label": 25}]}

# name of the format, its label file, its content, the regions of a.png: (text, ignore); b.png has none.
FILES = [
    ("coco_det", "instances.json", json.dumps(COCO), [HI, SKIP]),
    ("coco_text_det", "COCO_Text.json", json.dumps(COCO_TEXT), [HI, SKIP]),
    ("coco_text_det", "TextOCR_0.1_train.json", json.dumps(TEXT_OCR), [HI, SKIP]),
    ("art_det", "train_labels.json", json.dumps(ART), [HI, SKIP]),
    ("mmocr_det", "textdet_train.json", json.dumps(MMOCR), [HI, SKIP]),
    ("doctr_det", "labels.json", json.dumps(DOCTR), [("", False)]),
    ("via_det", "via_project.json", json.dumps(VIA), [HI, SKIP]),
    ("label_studio_det", "export.json", json.dumps(STUDIO), [HI]),
    ("cvat_det", "annotations.xml", CVAT, [HI, SKIP]),
    ("wildreceipt_det", "train.txt", json.dumps(WILD) + '\n{"file_name": "b.png", "annotations": []}\n', [HI]),
]

FUNSD = {
    "form": [
        {
            "box": [0, 0, 9, 9],
            "text": "Hi, you",
            "words": [{"box": [10, 8, 90, 30], "text": "Hi, you"}],
            "label": "other",
        },
        {"box": [10, 8, 90, 30], "text": "", "words": [], "label": "other"},
    ]
}
CORNERS = dict(zip(("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4"), FLAT, strict=True))
CORD = {"valid_line": [{"words": [{"quad": CORNERS, "text": "Hi, you"}]}]}
LABELME = {
    "imagePath": "a.png",
    "imageData": None,
    "shapes": [
        {"label": "text", "description": "Hi, you", "points": QUAD, "shape_type": "polygon"},
        {"label": "###", "points": [[10, 8], [90, 30]], "shape_type": "rectangle"},
        {"label": "text", "points": [[1, 2]], "shape_type": "point"},
    ],
}
RECTS = {
    "lines": [
        {"points": FLAT, "transcription": "Hi, you", "ignore": 0},
        {"points": FLAT, "transcription": "###", "ignore": 1},
    ],
    "chars": [],
}
NUMBERS = ",".join(map(str, FLAT))
CTW_XML = f"""<Annotations><image file="a.png"><box height="22" left="10" top="8" width="80"><label>Hi, you</label>
<segs>{",".join(map(str, CURVE))}</segs></box></image></Annotations>"""
TOTAL = """x: [[10 90
 90 10]], y: [[ 8  8 30 30]], ornt: [u'h'], transcriptions: [u'Hi, you']
x: [[10 90 90 10]], y: [[8 8 30 30]], ornt: [u'#'], transcriptions: [u'#']
"""

# name, files of a.png, and of b.png (which has no regions), the regions of a.png.
FOLDERS = [
    ("icdar13_det", "gt/gt_{}.txt", '10, 8, 90, 30, "Hi, you"\n10 8 90 30 "###"\n', "", [HI, SKIP]),
    ("mlt_det", "gt/gt_{}.txt", f"{NUMBERS},Latin,Hi, you\n{NUMBERS},None,###\n", "", [HI, SKIP]),
    ("sroie_det", "{}.txt", f"{NUMBERS},Hi, you\r\n", "", [HI]),
    ("total_text_det", "gt/poly_gt_{}.txt", TOTAL, "", [HI, SKIP]),
    ("td500_det", "{}.gt", "0 0 10 8 80 22 0.0\n1 1 10 8 80 22 0\n", "", [("", False), SKIP]),
    ("funsd_det", "annotations/{}.json", json.dumps(FUNSD), '{"form": []}', [HI, SKIP]),
    ("cord_det", "json/{}.json", json.dumps(CORD), '{"valid_line": []}', [HI]),
    ("labelme_det", "{}.json", json.dumps(LABELME), '{"shapes": []}', [HI, SKIP]),
    ("rects_det", "gt/{}.json", json.dumps(RECTS), '{"lines": [], "chars": []}', [HI, SKIP]),
    ("yolo_det", "labels/{}.txt", "0 0.1 0.2 0.9 0.2 0.9 0.75 0.1 0.75\n0 0.5 0.475 0.8 0.55\n", "", [("", False)] * 2),
]


def sound(target: Polygons) -> bool:
    return all(np.isfinite(points).all() and len(points) >= 3 for points in target.points)


def check(entries: list[Entry], regions: list[tuple[str, bool]]) -> None:
    by_name = {Path(entry.image).name: entry.target for entry in entries}
    assert sorted(by_name) == ["a.png", "b.png"]
    first, second = by_name["a.png"], by_name["b.png"]
    assert isinstance(first, Polygons)
    assert list(zip(first.texts, first.ignore, strict=True)) == regions
    assert all(points.dtype == np.float32 for points in first.points)
    assert all(points.min(axis=0).tolist() == [10, 8] for points in first.points)
    assert all(points.max(axis=0) == pytest.approx([90, 30]) for points in first.points)
    assert second == Polygons((), (), ())


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    import cv2

    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(tmp_path / "images" / name), np.zeros((40, 100, 3), np.uint8))
    return tmp_path


@pytest.mark.parametrize(("name", "file", "content", "regions"), FILES)
def test_a_file_for_all_pictures_is_read_and_recognised(name, file, content, regions, pictures) -> None:
    (pictures / file).write_text(content, "utf-8")
    check(list(FORMATS.get(name)().read(pictures / file)), regions)
    for given_path in (pictures / file, pictures):
        found = detect_format(given_path)
        assert (found.format, found.root) == (name, pictures / "images")


@pytest.mark.parametrize(("name", "pattern", "content", "empty", "regions"), FOLDERS)
def test_a_file_for_each_picture_is_read_and_recognised(name, pattern, content, empty, regions, pictures) -> None:
    for stem, written in (("a", content), ("b", empty)):
        file = pictures / pattern.format(stem)
        file.parent.mkdir(exist_ok=True)
        file.write_text(written, "utf-8", newline="")
    check(list(FORMATS.get(name)().read(pictures)), regions)
    assert detect_format(pictures).format == name


@pytest.mark.parametrize("suffix", ["xml", "txt", "old"])
def test_curved_text_of_ctw1500_comes_in_three_ways(suffix, pictures) -> None:
    offsets = ",".join(str(number - (8 if place % 2 else 10)) for place, number in enumerate(CURVE))
    lines = {"xml": CTW_XML, "txt": f"{','.join(map(str, CURVE))},####Hi, you\n", "old": f"10,8,90,30,{offsets}\n"}
    file = pictures / f"labels/a.{suffix.replace('old', 'txt')}"
    file.parent.mkdir()
    file.write_text(lines[suffix])
    file.with_name(f"b{file.suffix}").write_text("<Annotations/>" if suffix == "xml" else "")
    first, second = (entry.target for entry in FORMATS.get("ctw1500_det")().read(pictures))
    assert isinstance(first, Polygons)
    assert first.points[0].ravel().tolist() == CURVE
    assert first.texts == ("" if suffix == "old" else "Hi, you",)
    assert second == Polygons((), (), ())
    assert detect_format(pictures).format == "ctw1500_det"


def test_photographs_in_coco_s_format_stay_classes(pictures) -> None:
    cats = {**COCO, "categories": [{"id": 1, "name": "cat"}]}
    cats["annotations"] = [{"image_id": 3, "category_id": 1, "segmentation": [FLAT], "bbox": [1, 2, 3, 4]}]
    (pictures / "instances_train.json").write_text(json.dumps(cats))
    assert detect_format(pictures / "instances_train.json").format == "coco"
    assert with_format(pictures / "instances_train.json", "coco_det").root == pictures / "images"


def test_receipts_in_mixed_encodings_are_read_whole_and_reported(pictures) -> None:
    (pictures / "a.txt").write_bytes(f"{NUMBERS},CAFÉ 5\n{NUMBERS},TOTAL\n".encode("latin-1"))
    (pictures / "b.txt").write_bytes(f"\ufeff{NUMBERS},CAFÉ 5\r\n".encode())
    source = open_source(SourceSpec(path=str(pictures), format="sroie_det"))
    assert [source.target(k).texts for k in range(2)] == [("CAFÉ 5", "TOTAL"), ("CAFÉ 5",)]
    assert "files of SROIE that are no UTF-8, read as Latin-1: 1" in source.notes


def test_what_is_no_region_is_counted(pictures) -> None:
    (pictures / "annotations.xml").write_text(CVAT)
    notes = open_source(SourceSpec(path=str(pictures))).notes
    assert "shapes of CVAT passed over, for a points is no region: 1" in notes


def test_turned_boxes_turn_about_the_place_that_the_tool_means(pictures) -> None:
    turned = CVAT.replace('ybr="30">', 'ybr="30" rotation="90">')
    (pictures / "annotations.xml").write_text(turned)
    target = next(FORMATS.get("cvat_det")().read(pictures / "annotations.xml")).target
    assert target.points[1] == pytest.approx(np.array([[61, -21], [61, 59], [39, 59], [39, -21]]))
    studio = json.loads(json.dumps(STUDIO))
    studio[0]["annotations"][0]["result"][0]["value"]["rotation"] = 90
    (pictures / "export.json").write_text(json.dumps(studio))
    target = next(FORMATS.get("label_studio_det")().read(pictures / "export.json")).target
    assert target.points[0] == pytest.approx(np.array([[10, 8], [10, 88], [-12, 88], [-12, 8]]), abs=1e-4)


def test_a_picture_without_a_yolo_file_has_no_regions(pictures) -> None:
    (pictures / "labels").mkdir()
    (pictures / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    source = open_source(SourceSpec(path=str(pictures)))
    assert [len(source.target(k).points) for k in range(2)] == [1, 0]
    assert "pictures of YOLO without a file, which have no regions: 1" in source.notes


def test_of_several_files_the_one_in_a_folder_of_the_same_name_counts(tmp_path: Path, make_images) -> None:
    make_images(tmp_path, ["images/train/a.png", "images/val/a.png"])
    for part, share in (("train", "0.2"), ("val", "0.4")):
        (tmp_path / "labels" / part).mkdir(parents=True)
        (tmp_path / "labels" / part / "a.txt").write_text(f"0 0.5 0.5 {share} {share}\n")
    wide = {e.image: np.ptp(e.target.points[0][:, 0]) for e in FORMATS.get("yolo_det")().read(tmp_path)}
    assert wide["images/val/a.png"] == pytest.approx(2 * wide["images/train/a.png"])


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;">]>'
    '<annotations><image name="&y;"/></annotations>'
)


@pytest.mark.parametrize("content", [BOMB, "<annotations><image>", "<a>" * 5000, "no xml", ""])
def test_xml_that_is_unsafe_or_damaged_is_one_error(content, tmp_path: Path) -> None:
    (tmp_path / "annotations.xml").write_text(content)
    with pytest.raises(LabelFileError, match=r"annotations\.xml"):
        list(FORMATS.get("cvat_det")().read(tmp_path / "annotations.xml"))


@pytest.mark.parametrize(("name", "file", "content", "_"), FILES)
@QUICK
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_with_its_name(name, file, content, _, data, tmp_path: Path) -> None:
    """Cuts a piece out of a good file, or puts another value in the place of one: no other error may come out."""
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 30)))
    other = data.draw(st.sampled_from(["", "null", "[]", "{}", '"x"', "NaN", "1e999", "-1", "<", '"points": 7']))
    path = tmp_path / file
    path.write_text(content[:start] + other + content[stop:], "utf-8")
    targets, refusal = [], str(path)
    try:
        targets.extend(entry.target for entry in FORMATS.get(name)().read(path))
    except LabelFileError as error:
        refusal = str(error)
    assert str(path) in refusal
    assert all(isinstance(target, Polygons) and sound(target) for target in targets)


@pytest.mark.parametrize(("name", "pattern", "content", "empty", "_"), FOLDERS)
@QUICK
@given(data=st.data())
def test_a_damaged_file_of_one_picture_is_read_or_refused(
    name, pattern, content, empty, _, data, tmp_path: Path
) -> None:
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 20)))
    other = data.draw(st.sampled_from(["", "null", "[]", "{}", '"x"', "nan", "1e999", ",", "-1"]))
    path = tmp_path / pattern.format("a")
    path.parent.mkdir(exist_ok=True)
    path.write_text(content[:start] + other + content[stop:], "utf-8")
    image = tmp_path / "a.png"
    if not image.exists():
        import cv2

        cv2.imwrite(str(image), np.zeros((40, 100, 3), np.uint8))
    target, refusal = Polygons((), (), ()), str(path)
    try:
        target = FORMATS.get(name)().parse(path, image)
    except LabelFileError as error:
        refusal = str(error)
    assert str(path) in refusal
    assert sound(target)


WRITTEN = ("paddle_det", "icdar_det", "coco_det", "labelme_det")


@pytest.mark.parametrize("target", WRITTEN)
@pytest.mark.parametrize("start", ["funsd_det", "labelme_det"])
def test_sets_are_converted_to_every_format_that_is_written(start, target, pictures, tmp_path: Path) -> None:
    content = {"funsd_det": json.dumps(FUNSD), "labelme_det": json.dumps({**LABELME, "shapes": LABELME["shapes"][:2]})}
    folder = pictures / "annotations"
    folder.mkdir()
    (folder / "a.json").write_text(content[start])
    (folder / "b.json").write_text('{"form": [], "shapes": []}')
    source = open_source(SourceSpec(path=str(pictures), format=start))
    convert(source, tmp_path / "out", target)
    found = open_source(SourceSpec(path=str(tmp_path / "out")))
    assert found.format == target
    wanted = {Path(source.key(k)).name: source.target(k) for k in range(2)}
    for k in range(2):
        one, other = found.target(k), wanted[Path(found.key(k)).name]
        assert (one.ignore, one.texts) == (other.ignore, other.texts)
        assert [points.tolist() for points in one.points] == [points.tolist() for points in other.points]


@pytest.mark.parametrize("name", [name for name in FORMATS.names() if name.endswith("_det") and name not in WRITTEN])
def test_formats_that_are_only_read_say_so(name, tmp_path: Path) -> None:
    target = Polygons((np.array(QUAD, np.float32),), (False,), ("x",))
    assert "read, not written" in (FORMATS.get(name)().refuses("a.png", target) or "")
    with pytest.raises(DataError, match="read, not written"):
        FORMATS.get(name)().write(tmp_path, [Entry("a.png", target, 1)])
