from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from inkmill.config.model import ModelSpec
from inkmill.data.types import Batch, Text
from inkmill.errors import ConfigError
from inkmill.runtime.torch_reader import TorchReader, read_with_loss
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.tasks.recognition.normalise import Normaliser


def batch(texts: list[str]) -> Batch:
    images = torch.full((len(texts), 32, 32, 1), 90, dtype=torch.uint8)
    widths = np.full(len(texts), 32, np.int32)
    return Batch(images, widths, [Text(text) for text in texts], texts, np.arange(len(texts)))


@pytest.mark.parametrize("prediction", ["CTC", "Attn", "Slots"])
def test_a_batch_of_which_nothing_is_left_adds_no_loss(prediction: Literal["CTC", "Attn", "Slots"]) -> None:
    codec = make_codec(prediction, Charset(tuple("ab")), 3)
    spec = ModelSpec(backbone="Tiny", sequence="none", TPS=True, input_width=32, prediction=prediction)
    model = build_recognizer(spec, codec.num_classes, 3).eval()
    found = list(read_with_loss(model, [batch([]), batch(["a", "ba"]), batch([])], codec, Normaliser([])))
    assert [truths for _, truths, _, _, _ in found] == [["a", "ba"]]
    assert math.isfinite(found[0][4])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="device=cuda:1, and torch finds no GPU here; leave it out"):
        TorchReader.load(Path("any.safetensors"), "cuda:1")
