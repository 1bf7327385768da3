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
from inkmill.runtime.torch_reader import TorchReader, predict_batches
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.task import Recognition


def batch(texts: list[str]) -> Batch:
    images = torch.full((len(texts), 32, 32, 1), 90, dtype=torch.uint8)
    widths = np.full(len(texts), 32, np.int32)
    return Batch(images, widths, [Text(text) for text in texts], texts, np.arange(len(texts)))


@pytest.mark.parametrize("prediction", ["CTC", "Attn", "Slots"])
def test_a_batch_of_which_nothing_is_left_adds_no_loss(prediction: Literal["CTC", "Attn", "Slots"]) -> None:
    spec = ModelSpec(backbone="Tiny", sequence="none", TPS=True, input_width=32, prediction=prediction)
    task = Recognition(spec, Charset(tuple("ab")), 3)
    batches = [batch([]), batch(["a", "ba"]), batch([])]
    found = list(predict_batches(task.build().eval(), task, task.plain_decoder(), batches, with_loss=True))
    assert [one.truths for one in found] == [["a", "ba"]]
    assert math.isfinite(found[0].loss)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="device=cuda:1, and torch finds no GPU here; leave it out"):
        TorchReader.load(Path("any.safetensors"), "cuda:1")
