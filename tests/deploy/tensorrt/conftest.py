"""Readers of several kinds as ONNX files, with fresh weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inkmill.config.load import load_spec
from inkmill.deploy.export.run import export
from inkmill.deploy.tensorrt.library import Library, load_tensorrt
from inkmill.errors import MissingExtraError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.tasks.recognition.task import Recognition

SMALL = ["model.backbone=Tiny", "model.sequence=none", "model.input_width=64", "dataset.max_label_length=6"]


@pytest.fixture(scope="session")
def library() -> Library:
    """The TensorRT that is installed; without one the test is skipped."""
    try:
        return load_tensorrt()
    except MissingExtraError:
        pytest.skip("neither tensorrt nor tensorrt_rtx is installed")


@pytest.fixture(scope="session")
def few(writable_captchas: Path) -> Path:
    """Labels of a thousand captchas."""
    lines = (writable_captchas / "labels.tsv").read_text("utf-8").splitlines()
    labels = writable_captchas / "few_for_engines.tsv"
    labels.write_text("\n".join(lines[::5][:1000]) + "\n", "utf-8")
    return labels


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function from keys of the spec to an ONNX file with fresh weights; one file for the same keys."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*overrides: str) -> Path:
        if overrides not in made:
            folder = tmp_path_factory.mktemp("fresh")
            places = [f"export.checkpoint={folder / 'reader.safetensors'}", f"results_dir={folder}"]
            spec = load_spec(None, [*SMALL, *overrides, *places])
            card = ModelHeader.of(Recognition(spec.model, Charset(tuple("0123456789")), 6))
            torch.manual_seed(0)
            model = build_recognizer(spec.model, card.open_task().codec.num_classes, 6)
            model.head.get_parameter("classes.weight").data *= 30  # sure of what it reads
            save_model(folder / "reader.safetensors", model.state_dict(), card)
            made[overrides] = export(spec, crops=6)
        return made[overrides]

    return make
