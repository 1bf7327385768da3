"""Drawn pages, and two models that really find and read what is drawn: ink that lies together, and the nearest letter.

They fill the places of networks, so that these tests ask for geometry, order and files, and need no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import matplotlib
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image, ImageDraw, ImageFont

from inkmill.pages.models import InputSize, LineText
from inkmill.pages.reader import PageReader

FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono-Bold.ttf"
LETTERS = "ABCDEFGJKLPQRTUVY1234567"
"""Each in one piece from left to right, and none looks like another one upside down."""
_HEIGHT, _CELL = 32, (16, 24)


class Region(NamedTuple):
    points: np.ndarray
    score: float


class InkDetector:
    """Ink that is nearer to other ink than `reach` pixels is one region."""

    def __init__(self, reach: int = 17) -> None:
        self._kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach))
        self.sizes: list[tuple[int, int]] = []

    def detect(self, images):
        return [self._detect(image) for image in images]

    def _detect(self, image):
        self.sizes.append(image.shape[:2])
        ink = (image.min(axis=2) < 128).astype(np.uint8)
        count, labels = cv2.connectedComponents(cv2.dilate(ink, self._kernel))
        found = []
        for label in range(1, count):
            rows, columns = np.nonzero((labels == label) & (ink > 0))
            if len(rows) < 12:
                continue
            # The corners of the pixels, grown by a little white.
            points = np.stack([columns + 0.5, rows + 0.5], axis=1).astype(np.float32)
            centre, size, angle = cv2.minAreaRect(points)
            found.append(Region(cv2.boxPoints((centre, (size[0] + 7, size[1] + 7), angle)), 0.9))
        return found


class NearestLetter:
    """Cuts a line at its white columns, and compares each piece of ink with every letter."""

    channels = 1

    def __init__(self, longest: float = 60.0) -> None:
        self.longest = longest
        font = ImageFont.truetype(str(FONT), 48)
        self._templates = np.stack([_cell(_glyph(letter, font)) for letter in LETTERS])

    def input_size(self, width, height):
        valid = max(round(_HEIGHT * width / height), 1)
        return InputSize(-(-valid // 32) * 32, _HEIGHT, valid)

    def read_lines(self, images, valid):
        return [self._read(255 - image[:, :end, 0]) for image, end in zip(images, valid, strict=True)]

    def _read(self, ink):
        columns = np.flatnonzero((ink > 90).any(axis=0))
        if not len(columns):
            return LineText("", *(np.zeros(0, np.float32),) * 3)
        pieces = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
        text, probabilities, starts, ends = "", [], [], []
        for piece in pieces:
            start, end = int(piece[0]), int(piece[-1]) + 1
            if ends and start - ends[-1] > 0.32 * _HEIGHT:
                text, probabilities = text + " ", [*probabilities, 1.0]
                starts, ends = [*starts, ends[-1] + 1], [*ends, start - 1]
            found = _cell(ink[:, start:end])
            likeness = (self._templates * found).sum(axis=(1, 2))
            text += LETTERS[int(likeness.argmax())]
            probabilities.append(float(np.clip((likeness.max() - 0.5) * 2, 0, 1)))
            starts, ends = [*starts, start], [*ends, end]
        arrays = (np.array(values, np.float32) for values in (probabilities, starts, ends))
        return LineText(text, *arrays)


def _glyph(letter, font):
    image = Image.new("L", (80, 80), 0)
    ImageDraw.Draw(image).text((10, 5), letter, font=font, fill=255)
    return np.asarray(image)


def _cell(ink):
    """The ink in its box, of one size, without mean and of length one."""
    rows, columns = np.nonzero(ink > 90)
    if not len(rows):
        return np.zeros((_CELL[1], _CELL[0]))
    box = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    cell = cv2.resize(box, _CELL, interpolation=cv2.INTER_AREA).astype(float)
    cell -= cell.mean()
    return cell / max(np.linalg.norm(cell), 1e-6)


@dataclass
class Drawn:
    """A drawn page: pixels, and (text, left, top, right, bottom) of each word's ink."""

    pixels: np.ndarray
    words: list[tuple[str, float, float, float, float]]


def draw(lines, size=(420, 300), height=22):
    """Draw (x, y, text) lines in black on white."""
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.truetype(str(FONT), height)
    words = []
    step = round(0.75 * height)  # a little more than the font's own, so that no two letters touch
    for x, y, text in lines:
        for word in text.split(" "):
            boxes = []
            for letter in word:
                pen.text((x, y), letter, font=font, fill="black")
                boxes.append(pen.textbbox((x, y), letter, font=font))
                x += step
            (left, *_), *_ = boxes
            words.append((word, left, min(box[1] for box in boxes), boxes[-1][2], max(box[3] for box in boxes)))
            x += step // 2
    return Drawn(np.asarray(image), words)


LINES = [(30, 30, "QUEBEC 7146"), (30, 80, "RAT CLUB TAPE"), (30, 130, "FAQ 25 PUTTY"), (30, 180, "BRAVE GRAY JURY 3")]


@pytest.fixture(scope="session")
def drawn():
    return draw(LINES)


@pytest.fixture(scope="session")
def page_reader():
    return PageReader(InkDetector(), NearestLetter())


@pytest.fixture
def draw_page():
    return draw


@pytest.fixture
def ink_detector():
    return InkDetector


@pytest.fixture
def nearest_letter():
    return NearestLetter


SHADES = {"a": 0.6, "b": 0.2, "c": -0.2, " ": -0.6}


def save(path, nodes, shape_in, shape_out, constants=(), metadata=()):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape_in)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape_out)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(*one) for one in constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def detector_file(tmp_path_factory):
    """The probability of text is how dark a pixel is: (1 - mean) / 2."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["one", "mean"], ["twice"]),
        helper.make_node("Mul", ["twice", "half"], ["y"]),
    ]
    constants = [(np.float32(1), "one"), (np.float32(0.5), "half")]
    path = tmp_path_factory.mktemp("paddle") / "det.onnx"
    return save(path, nodes, ["b", 3, "h", "w"], ["b", 1, "h", "w"], constants)


@pytest.fixture(scope="session")
def reader_file(tmp_path_factory):
    """Every 8 columns are the character whose shade is nearest; white (1) is the blank."""
    shades = np.array([1.0, *SHADES.values()], np.float32)
    nodes = [
        helper.make_node("AveragePool", ["x"], ["pooled"], kernel_shape=[48, 8], strides=[48, 8]),
        helper.make_node("ReduceMean", ["pooled"], ["gray"], axes=[1, 2], keepdims=0),
        helper.make_node("Unsqueeze", ["gray", "axis"], ["column"]),
        helper.make_node("Sub", ["column", "shades"], ["difference"]),
        helper.make_node("Mul", ["difference", "difference"], ["square"]),
        helper.make_node("Mul", ["square", "sharp"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"], axis=2),
    ]
    constants = [(shades, "shades"), (np.array([2], np.int64), "axis"), (np.float32(-200), "sharp")]
    path = tmp_path_factory.mktemp("paddle") / "rec.onnx"
    return save(path, nodes, ["b", 3, 48, "w"], ["b", "t", "k"], constants, {"character": "a\nb\nc"})
