"""Models of PaddleOCR's form: small ONNX files with its inputs and outputs, that find dark and read shades of gray."""

from __future__ import annotations

import cv2
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.pages.conftest import SHADES

from inkmill.errors import ModelFileError
from inkmill.pages.models import open_detector, open_line_reader
from inkmill.pages.paddle import STRIP_PIXELS, UNCLIP_RATIO, PaddleDetector, PaddleReader, is_paddle, rectangles


def bars(*shades, width=8):
    """A line of gray bars, 48 high."""
    levels = [round(127.5 + 127.5 * {"-": 1.0, **SHADES}[shade]) for shade in shades]
    return np.repeat(np.array(levels, np.uint8), width)[None, :, None].repeat(48, axis=0).repeat(3, axis=2)


def test_a_reader_gives_texts_with_the_columns_of_their_characters(reader_file):
    (text,) = PaddleReader(reader_file).read_lines(bars(*"-ab-bb c")[None], np.array([64], np.int32))
    assert text.text == "abb c"
    assert text.starts.tolist() == [8, 16, 32, 48, 56]
    assert text.ends.tolist() == [16, 24, 48, 56, 64]
    assert (text.probabilities > 0.9).all()


def test_lines_of_one_batch_say_what_each_says_alone(reader_file):
    reader = PaddleReader(reader_file)
    lines = np.stack([bars(*"-ab-"), bars(*"ccb-")])
    both = reader.read_lines(lines, np.array([32, 32], np.int32))
    assert [text.text for text in both] == ["ab", "cb"]
    assert [reader.read_lines(line[None], np.array([32], np.int32))[0].text for line in lines] == ["ab", "cb"]


def test_what_is_right_of_a_short_line_is_gray_and_no_repeated_ink(reader_file):
    (text,) = PaddleReader(reader_file).read_lines(bars(*"-abbbbbb")[None], np.array([24], np.int32))
    assert text.text.startswith("ab")
    assert "bb" not in text.text


def test_a_detector_finds_dark_rectangles_where_they_are(detector_file):
    image = np.full((800, 900, 3), 255, np.uint8)
    image[100:130, 200:500] = 0
    image[300:330, 100:180] = 0
    found = sorted(PaddleDetector(detector_file).detect([image])[0], key=lambda region: region.points[:, 1].min())
    assert len(found) == 2
    grown = 300 * 30 * UNCLIP_RATIO / (2 * 330)
    assert found[0].points.min(axis=0) == pytest.approx([200 - grown, 100 - grown], abs=4)
    assert found[0].points.max(axis=0) == pytest.approx([500 + grown, 130 + grown], abs=4)
    assert found[0].score > 0.9


def test_the_map_of_strips_is_that_of_the_whole(detector_file, monkeypatch):
    image = np.random.default_rng(0).integers(0, 256, (1600, 704, 3), np.uint8)
    assert image.shape[0] * image.shape[1] > STRIP_PIXELS
    detector = PaddleDetector(detector_file)
    for one in (image, np.ascontiguousarray(image.swapaxes(0, 1))):
        strips = detector._map(one)
        monkeypatch.setattr("inkmill.pages.paddle.STRIP_PIXELS", 1 << 30)
        assert np.array_equal(strips, detector._map(one))
        monkeypatch.undo()


def test_a_small_picture_is_enlarged_by_two_at_most(detector_file):
    image = np.full((40, 64, 3), 255, np.uint8)
    image[14:26, 10:54] = 0
    (region,) = PaddleDetector(detector_file).detect([image])[0]
    assert region.points.mean(axis=0) == pytest.approx([32, 20], abs=1.5)


@settings(max_examples=30)
@given(st.floats(20, 200), st.floats(12, 60), st.floats(0, 180), st.floats(150, 250), st.floats(150, 250))
def test_a_rectangle_of_the_map_grows_as_clipping_its_polygon_would_grow_it(width, height, angle, x, y):
    corners = cv2.boxPoints(((x, y), (width, height), angle))
    probability = np.zeros((400, 400), np.float32)
    cv2.fillPoly(probability, [np.round(corners).astype(np.int32)], 1.0)
    found = rectangles(probability)
    assert len(found) == 1
    # Area x ratio / perimeter at each side.
    grow = 2 * width * height * UNCLIP_RATIO / (2 * (width + height))
    sides = np.linalg.norm(found[0].points - np.roll(found[0].points, -1, axis=0), axis=1)
    assert sorted(sides.tolist())[::2] == pytest.approx(
        sorted([width + grow, height + grow]), abs=9
    )  # pixels at its edges
    assert found[0].points.mean(axis=0) == pytest.approx([x, y], abs=2)


def test_files_are_told_apart_by_their_outputs(detector_file, reader_file):
    assert is_paddle(detector_file)
    assert isinstance(open_detector(detector_file), PaddleDetector)
    assert isinstance(open_line_reader(reader_file), PaddleReader)
    with pytest.raises(ModelFileError, match="detector is expected"):
        PaddleDetector(reader_file)
    with pytest.raises(ModelFileError, match="characters"):
        PaddleReader(detector_file)


def test_a_reader_with_fewer_characters_than_classes_is_refused(reader_file, tmp_path):
    model = onnx.load(reader_file)
    helper.set_model_props(model, {"character": "a"})
    onnx.save(model, tmp_path / "few.onnx")
    with pytest.raises(ModelFileError, match="5 classes"):
        PaddleReader(tmp_path / "few.onnx").read_lines(bars("a")[None], np.array([8], np.int32))


def test_a_missing_file_is_named():
    with pytest.raises(ModelFileError, match=r"nowhere\.onnx"):
        open_detector("nowhere.onnx")
