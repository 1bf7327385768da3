from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import inkmill
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.errors import ConfigError, InkmillError, ModelFileError
from inkmill.export.onnx import export
from inkmill.models import build_recognizer
from inkmill.models.file import save_reader
from inkmill.runtime.card import ReaderCard
from inkmill.runtime.onnx import OnnxReader
from inkmill.text.codecs import make_codec


def untrained(folder: Path, *overrides: str) -> Spec:
    """Return a spec whose export.checkpoint is a reader with fresh weights."""
    small = ["model.backbone=Tiny", "model.input_width=64", "dataset.max_label_length=6"]
    spec = load_spec(None, [*small, *overrides, f"export.checkpoint={folder / 'reader.safetensors'}"])
    card = ReaderCard(model=spec.model, charset=list("0123456789"), max_label_length=6)
    codec = make_codec(spec.model.prediction, card.characters(), 6)
    model = build_recognizer(spec.model, codec.num_classes, 6)
    save_reader(folder / "reader.safetensors", model.state_dict(), card)
    return spec


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages",
    [["model.sequence=none", "model.TPS=true"], ["model.sequence=BiLSTM", "model.prediction=Attn"]],
    ids=["TPS-CTC", "BiLSTM-Attn"],
)
def test_the_file_reads_captchas_as_torch_does(stages: list[str], tmp_path: Path, captchas: Path) -> None:
    path = export(untrained(tmp_path, *stages))
    images = sorted((captchas / "images").iterdir())[:7]
    ours = inkmill.load(tmp_path / "reader.safetensors", device="cpu").read(images)
    theirs = inkmill.load(path).read(images, batch_size=3)
    assert [reading.text for reading in theirs] == [reading.text for reading in ours]
    assert [r.confidence for r in theirs] == pytest.approx([r.confidence for r in ours], abs=1e-4)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [(one.name, one.type) for one in session.get_outputs()] == [
        ("output_id", "tensor(int32)"),
        ("output_prob", "tensor(float)"),
    ]
    assert session.get_modelmeta().custom_metadata_map["character"] == "\n".join("0123456789")
    read_without_torch(path, images[0], ours[0].text)


def read_without_torch(path: Path, image: Path, text: str) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import inkmill\n"
        "print(inkmill.load(sys.argv[1]).read(sys.argv[2])[0].text, end='')\n"
        "from inkmill.cli.main import run\n"
        "sys.exit(run(['infer', sys.argv[1], sys.argv[2], '--format', 'csv', '-o', sys.argv[1] + '.csv']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, path, image], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(text)
    assert Path(f"{path}.csv").read_text("utf-8").count("\n") == 2


def test_a_file_that_reads_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: OnnxReader, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(images), 16)
        return np.ones(shape, np.int32), np.ones(shape, np.float32)

    monkeypatch.setattr(OnnxReader, "classify", wrong)
    with pytest.raises(InkmillError, match="does not read what torch reads"):
        export(untrained(tmp_path, "model.sequence=none"))
    assert not list(tmp_path.glob("*.onnx"))


def test_what_cannot_be_exported_or_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its input width is free"):
        export(untrained(tmp_path, "model.sequence=none", "model.input_fit=height"))
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    for name in ("junk.onnx", "missing.onnx"):
        with pytest.raises(ModelFileError):
            inkmill.load(tmp_path / name)
