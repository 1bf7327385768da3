"""inkmill's own readers as line readers: the same texts, and where their characters stand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.pages.models import OwnLineReader, open_line_reader
from inkmill.runtime.torch_reader import TorchReader
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.tasks.recognition.task import Recognition

CHARSET = Charset(tuple("0123456789"))


def own_reader(**settings):
    """A reader with fresh weights, sure of what it reads."""
    spec = ModelSpec(backbone="Tiny", sequence="none", **settings)
    torch.manual_seed(0)
    task = Recognition(spec, CHARSET, 30)
    model = build_recognizer(spec, 11, 30)
    if spec.prediction == "CTC":
        with torch.no_grad():
            model.head.get_parameter("classes.weight").mul_(30)
    return TorchReader(model.eval(), ModelHeader.of(task))


@pytest.fixture(scope="module")
def bucketed():
    return own_reader(input_resize="height", input_height=32, input_width=256)


def test_own_readers_say_the_same_as_lines_and_where_each_character_stands(bucketed):
    images = np.random.default_rng(0).integers(0, 256, (6, 32, 160, 1), np.uint8)
    lines = OwnLineReader(bucketed).read_lines(images, np.full(6, 160, np.int32))
    readings = bucketed.predict(images)
    assert [line.text for line in lines] == [reading.text for reading in readings]
    assert any(line.text for line in lines)
    for line, reading in zip(lines, readings, strict=True):
        assert len(line.starts) == len(line.ends) == len(line.text)
        assert float(line.probabilities.prod()) == pytest.approx(reading.confidence, rel=1e-4)
        assert (line.starts >= 0).all()
        assert (line.ends <= 160.01).all()
        assert (line.ends > line.starts).all()
        assert (line.starts[1:] >= line.ends[:-1]).all()


@pytest.mark.parametrize(("width", "height"), [(20.5, 33.2), (200.0, 21.4), (900.0, 20.0), (61.0, 60.0)])
@pytest.mark.parametrize("mode", ["height", "aspect", "pad", "stretch"])
def test_lines_get_the_input_that_their_pictures_would_get(width, height, mode):
    reader = own_reader(input_resize=mode, input_height=32, input_width=256)
    size = OwnLineReader(reader).input_size(width, height)
    image = np.zeros((round(height * 8), round(width * 8), 1), np.uint8)
    resized, valid = reader.resize.apply(image)
    assert (size.height, size.width) == resized.shape[:2]
    assert size.valid == valid


def test_readers_whose_head_has_no_columns_are_refused():
    reader = own_reader(prediction="Attn", input_height=32, input_width=64)
    with pytest.raises(ConfigError, match="CTC"):
        open_line_reader(reader)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelFileError, match=r"a\.onnx"):
        open_line_reader(tmp_path / "a.onnx")
