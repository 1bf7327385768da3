"""The task of detection: its header, its arrays, what it is told after a validation, and that it learns."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.data.types import Polygons, Text
from inkmill.errors import DataError, ModelFileError
from inkmill.tasks import find_task
from inkmill.tasks.detection.decode import Region, Regions
from inkmill.tasks.detection.spec import DetectionSection
from inkmill.tasks.detection.task import Detection

BOX = np.array([[10, 20], [80, 20], [80, 44], [10, 44]], np.float32)
TRUTH = Polygons((BOX, BOX + 100), (False, True), ("a", "###"))


def task(**section: object) -> Detection:
    return Detection(
        ModelSpec(backbone="tiny", input_height=64, input_width=96, input_channel=3), DetectionSection(**section)
    )


def said(*scores: float, shift: float = 0.0) -> Regions:
    return Regions(tuple(Region(BOX + shift + 200 * number, score) for number, score in enumerate(scores)))


def test_regions_of_a_batch_lie_one_after_the_other() -> None:
    triangle = Polygons((BOX[:3],), (True,))
    points, starts, pictures, ignore = task().encode([TRUTH, Polygons((), ()), triangle])
    assert points.shape == (11, 2)
    assert starts.tolist() == [0, 4, 8, 11]
    assert pictures.tolist() == [0, 2, 2, 3]
    assert ignore.tolist() == [0, 1, 1]
    assert [array.dtype for array in (points, starts, pictures, ignore)] == [np.float32, np.int32, np.int32, np.uint8]


def test_a_batch_without_regions_has_empty_arrays() -> None:
    points, starts, pictures, ignore = task().encode([Polygons((), ())])
    assert points.shape == (0, 2)
    assert (starts.tolist(), pictures.tolist(), ignore.tolist()) == ([0], [0, 0], [])


def test_text_is_no_target_of_a_detector() -> None:
    with pytest.raises(DataError, match="regions, and a sample has text"):
        task().truths([Text("a")])


def test_the_header_brings_the_task_back() -> None:
    before = task(kernel="shrink", threshold=0.4, box_threshold=0.61, shape="polygon", short_side=512)
    after = find_task("detection").from_header(before.model, json.loads(json.dumps(before.header())))
    assert isinstance(after, Detection)
    assert after.decode_options == before.decode_options
    assert after.map_options == before.map_options
    assert after.header() == before.header()


@pytest.mark.parametrize(
    "part", [{"share": 2}, {"kernel": "other"}, {"stride": 1}, {"short_side": 10**9}, {"unknown": 1}], ids=str
)
def test_a_damaged_header_is_refused(part: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Detection.from_header(task().model, part)


def test_the_metadata_say_how_to_decode() -> None:
    facts = json.loads(task(box_threshold=0.7).metadata()["detection"])
    assert (facts["kernel"], facts["share"], facts["box_threshold"], facts["stride"]) == ("inradius", 0.5, 0.7, 2)


def test_the_threshold_of_regions_is_found_on_the_validation_set_and_kept() -> None:
    truths = [TRUTH] * 4
    predictions = [said(0.8, 0.45)] * 4
    scores = task().score(truths, predictions)
    assert scores.threshold is not None
    assert 0.45 < scores.threshold <= 0.8
    assert scores.hmean == 1
    tuned = task().tuned(scores)
    assert tuned.decode_options.box_threshold == scores.threshold
    assert tuned.header()["box_threshold"] == scores.threshold


def test_a_given_threshold_stays() -> None:
    scores = task(box_threshold=0.3).score([TRUTH], [said(0.8, 0.45)])
    assert scores.threshold == 0.3
    assert scores.precision == 0.5


def test_errors_are_counted_and_drawn() -> None:
    one = task()
    assert one.error(TRUTH, said(0.9)) is None
    assert one.error(TRUTH, said(0.9, shift=300)) == (2.0, 1.0)
    assert one.prediction_row(TRUTH, said(0.9, 0.8)) == (2, 2, 1, 0, 1, 0)
    assert "1 texts, 1 found" in one.compare(TRUTH, said(0.9))
    drawn = one.draw(np.zeros((160, 400, 3), np.uint8), TRUTH, said(0.9, 0.8))
    assert drawn[20, 40, 1] > 100
    assert drawn[20, 40, [0, 2]].max() == 0
    assert one.error(TRUTH, one.no_prediction()) == (1.0, 1.0)


def test_outputs_that_are_no_shares_are_refused() -> None:
    with pytest.raises(ModelFileError, match=r"outside of 0\.\.1"):
        task().check_outputs({"probabilities": np.full((1, 4, 4), 1.5, np.float32)}, 1, "file")


def test_the_preset_describes_a_detector() -> None:
    spec = load_spec("detection")
    assert spec.task == "detection"
    found = find_task("detection").from_data(spec, [], lambda line: None)
    assert (found.model.backbone, found.model.input_height, found.model.input_width) == ("small", 640, 640)


def test_finding_text_needs_neither_torch_nor_shapely() -> None:
    script = (
        "import sys; sys.modules.update(torch=None, shapely=None)\n"
        "import numpy as np\n"
        "from inkmill.tasks import find_task\n"
        "from inkmill.config.model import ModelSpec\n"
        "task = find_task('detection').from_header(ModelSpec(), {})\n"
        "print(len(task.decoder().decode({'probabilities': np.ones((1, 32, 32), np.float32)})[0].found))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


def test_the_error_page_shows_the_most_missed_and_the_most_false() -> None:
    two, none = Polygons((BOX, BOX + 300), (False, False)), Polygons((), ())
    truths, answers = [TRUTH, two, none], [said(0.9), said(), said(0.9, 0.8, 0.7)]
    groups = task().worst_errors(truths, answers, 10)
    assert groups == [("Most texts missed", [1]), ("Most false regions", [2])]


def test_right_missed_false_and_ignored_regions_are_drawn_in_their_colours() -> None:
    picture = np.zeros((400, 400, 3), np.uint8)
    truth = Polygons((BOX, BOX + 100, BOX + np.float32([0, 200])), (False, True, False))
    found = Regions((Region(BOX, 0.9), Region(BOX + np.float32([200, 0]), 0.9)))
    drawn = task().draw(picture, truth, found)
    colours = [drawn[y, x].tolist() for x, y in ((40, 20), (140, 120), (40, 220), (240, 20))]
    assert len({tuple(colour) for colour in colours}) == 4
    assert all(any(colour) for colour in colours)
