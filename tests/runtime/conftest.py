"""A reader as torch's file and as ONNX, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.deploy.export.run import export
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.tasks.recognition.task import Recognition


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """reader.safetensors and reader.onnx, which gives all probabilities, with fresh weights."""
    place = tmp_path_factory.mktemp("onnx")
    spec = ModelSpec(backbone="Tiny", sequence="none", input_width=64)
    torch.manual_seed(0)
    model = build_recognizer(spec, 11, 6)
    with torch.no_grad():
        model.head.get_parameter("classes.weight").mul_(30)  # sure of what it reads, as trained ones are
    card = ModelHeader.of(Recognition(spec, Charset(tuple("0123456789")), 6))
    save_model(place / "reader.safetensors", model.state_dict(), card)
    settings = [f"export.checkpoint={place / 'reader.safetensors'}", "export.probabilities=true"]
    export(load_spec(None, [*settings, f"results_dir={place / 'results'}"]))
    return place


@pytest.fixture(scope="session")
def captchas(writable_captchas: Path) -> Path:
    """The captchas that these tests write beside."""
    return writable_captchas
