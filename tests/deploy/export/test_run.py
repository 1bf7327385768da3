from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from rich.console import Console

import inkmill
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.config.tasks import PruneSpec
from inkmill.deploy.export.graph import record
from inkmill.deploy.export.run import export
from inkmill.deploy.prune.run import prune
from inkmill.deploy.samples import verification_samples
from inkmill.errors import ConfigError, InkmillError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.runtime.onnx import OnnxReader
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.decoder import BEST
from inkmill.tasks.recognition.model import Recognizer, build_recognizer
from inkmill.tasks.recognition.task import Recognition

pytestmark = pytest.mark.slow


def untrained(folder: Path, *overrides: str, sure: bool = True) -> Spec:
    """Return a spec whose export.checkpoint has fresh weights: `sure` of many texts, else of few."""
    small = ["model.backbone=Tiny", "model.input_width=64", "dataset.max_label_length=6"]
    places = [f"export.checkpoint={folder / 'reader.safetensors'}", f"results_dir={folder}"]
    spec = load_spec(None, [*small, *overrides, *places])
    card = ModelHeader.of(Recognition(spec.model, Charset(tuple("0123456789")), 6))
    codec = make_codec(spec.model.prediction, card.open_task().charset, 6)
    torch.manual_seed(0)
    model = build_recognizer(spec.model, codec.num_classes, 6)
    if sure:
        _make_sure(model, spec)
    else:
        _draw_linear(model)
        model.head.get_parameter("classes.weight").data *= 30
    save_model(folder / "reader.safetensors", model.state_dict(), card)
    return spec


@torch.no_grad()
def _draw_linear(model: Recognizer) -> None:
    """Draw the linear layers' weights again: torch's truncated normal is another from one release to the next."""
    chance = np.random.default_rng(0)
    for part in model.modules():
        if isinstance(part, torch.nn.Linear):
            part.weight.copy_(torch.from_numpy(chance.normal(0, 0.02, part.weight.shape)))


@torch.no_grad()
def _make_sure(model: Recognizer, spec: Spec) -> None:
    """Centre and widen the scores: fresh weights would read the same, unsurely, in every picture."""
    classes = model.head.get_submodule("classes")
    seen: list[torch.Tensor] = []
    hook = classes.register_forward_hook(lambda part, given, scores: seen.append(scores.flatten(0, -2)))
    shades = torch.rand(16, spec.model.input_channel, 2, 8) * 2 - 1
    model.eval()(torch.nn.functional.interpolate(shades, (spec.model.input_height, spec.model.input_width)))
    hook.remove()
    spread, middle = torch.std_mean(torch.cat(seen), dim=0)
    classes.get_parameter("bias").sub_(middle).mul_(8 / spread)
    classes.get_parameter("weight").mul_(8 / spread[:, None])


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages",
    [["model.sequence=none", "model.TPS=true"], ["model.sequence=BiLSTM", "model.prediction=Attn"]],
    ids=["TPS-CTC", "BiLSTM-Attn"],
)
def test_the_file_reads_captchas_as_torch_does(stages: list[str], tmp_path: Path, captchas: Path) -> None:
    path = export(untrained(tmp_path, *stages), crops=24)
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
    assert (tmp_path / "reader.onnx.characters.txt").read_text("utf-8").split() == list("0123456789")
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


def figures(folder: Path) -> dict[str, Any]:
    """Return what export left in metrics.json."""
    read: dict[str, Any] = json.loads((folder / "export" / "metrics.json").read_text("utf-8"))
    return read


@pytest.mark.slow
@pytest.mark.parametrize(("sequence", "texts"), [("none", 30), ("BiLSTM", 2)])  # a fresh LSTM levels steps out
def test_a_free_width_stays_free(sequence: str, texts: int, tmp_path: Path, captchas: Path) -> None:
    settings = [f"model.sequence={sequence}", "model.input_resize=height", "model.input_width=200"]
    path = export(untrained(tmp_path, *settings, f"evaluate.test={captchas}"), crops=60)
    found = figures(tmp_path)
    assert found["string_parity"] == 1.0
    assert found["crops"] == 60
    assert found["different_texts"] > texts
    assert len(found["widths"]) >= 3
    assert "test sets" in found["pictures"]
    image = np.zeros((32, 200, 1), np.uint8)
    steps = [OnnxReader(path, "cpu").outputs(image[None, :, :width])["output_id"].shape[1] for width in (32, 96, 200)]
    assert steps == [8, 24, 50]


@pytest.mark.slow
def test_a_free_height_stays_free_too(tmp_path: Path, captchas: Path) -> None:
    settings = ["backbone=SVTRLite", "sequence=none", "input_resize=aspect", "input_width=192", "guide=1"]
    path = export(untrained(tmp_path, *(f"model.{one}" for one in settings), f"evaluate.test={captchas}"), crops=30)
    found = figures(tmp_path)
    assert found["string_parity"] == 1.0
    assert found["different_texts"] > 10
    reader = OnnxReader(path, "cpu")
    for height, width in reader.resize.sizes():
        assert reader.outputs(np.zeros((2, height, width, 1), np.uint8))["output_id"].shape == (2, width // 4)
    assert json.loads((tmp_path / "reader.onnx.card.json").read_text("utf-8"))["parameters"] < 4_300_000


def test_a_file_of_the_best_class_alone_has_no_other_probabilities(tmp_path: Path) -> None:
    path = export(untrained(tmp_path, "model.sequence=none"), crops=9)
    with pytest.raises(ConfigError, match="does not give probabilities"):
        OnnxReader(path, "cpu").outputs(np.zeros((1, 32, 64, 1), np.uint8), ["probabilities"])
    card = json.loads((tmp_path / "reader.onnx.card.json").read_text("utf-8"))
    assert [name[:18] for name in card["speeds"]] == ["images/s, batch 1,", "images/s, batch 32"]
    assert inkmill.load(path, "cpu").header.provenance["speeds"] == card["speeds"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_names_of_files_need_not_be_unicode(suffix: str, tmp_path: Path) -> None:
    spec = untrained(tmp_path, "model.sequence=none")
    given = tmp_path / os.fsdecode(b"caf\xe9" + suffix.encode())
    if suffix == ".pth":
        spec.prune = PruneSpec(checkpoint=str(spec.export.checkpoint), pruned_file=str(given))
        prune(spec)
    else:
        Path(str(spec.export.checkpoint)).rename(given)
    spec.export.checkpoint, spec.export.onnx_file = str(given), str(given.with_suffix(".onnx"))
    path = export(spec, crops=9)
    assert inkmill.load(path, "cpu").header.history()[-1]["source"] == given.name
    assert path.with_name(f"{path.name}.card.json").exists()


@pytest.mark.parametrize(("resize", "width"), [("pad", 40), ("height", 80)])
def test_crops_that_fill_the_input_are_made_of_three_widths(
    resize: str, width: int, captchas: Path, tmp_path: Path
) -> None:
    spec = untrained(
        tmp_path, f"model.input_width={width}", f"model.input_resize={resize}", f"evaluate.test={captchas}"
    )
    card = ModelHeader.of(Recognition(spec.model, Charset(tuple("0123456789")), 6))
    samples = verification_samples(spec, card, 30)
    assert len(samples.widths) >= 3
    assert samples.origin.endswith("two of three made to fill two thirds and one third of the input")


def test_missing_pictures_are_counted_as_damaged_ones_are(writable_captchas: Path, tmp_path: Path) -> None:
    lines = (writable_captchas / "labels.tsv").read_text("utf-8").splitlines()[:20]
    labels = writable_captchas / "one_missing.tsv"
    labels.write_text("\n".join([*lines, "images/nope.png\t1234"]) + "\n", "utf-8")
    export(untrained(tmp_path, "model.sequence=none", f"evaluate.test={labels}"))
    assert (figures(tmp_path)["crops"], figures(tmp_path)["unreadable"]) == (20, 1)


@pytest.mark.slow
def test_half_precision_is_half_as_large_and_bounded_too(tmp_path: Path, captchas: Path) -> None:
    settings = ["model.sequence=none", "model.input_resize=height", "model.input_width=200", "export.precision=fp16"]
    # Centred scores of fresh weights are differences too fine for fp16: such a model is refused.
    with pytest.raises(InkmillError, match=r"export\.precision=fp32"):
        export(untrained(tmp_path, *settings))
    path = export(untrained(tmp_path, *settings, f"evaluate.test={captchas}", sure=False))
    assert figures(tmp_path)["string_parity"] >= 0.999
    assert path.stat().st_size < 0.6 * (tmp_path / "reader.safetensors").stat().st_size


@pytest.mark.slow
def test_half_precision_with_an_lstm_reads(tmp_path: Path, captchas: Path) -> None:
    settings = ["model.sequence=BiLSTM", "model.input_resize=height", "export.precision=fp16"]
    export(untrained(tmp_path, *settings, f"evaluate.test={captchas}", sure=False), crops=12)
    assert figures(tmp_path)["crops"] == 12


def test_a_file_that_reads_otherwise_is_not_written_but_its_figures_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: OnnxReader, images: np.ndarray, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        shape = (len(images), 16)
        return {"output_id": np.ones(shape, np.int32), "output_prob": np.ones(shape, np.float32)}

    monkeypatch.setattr(OnnxReader, "outputs", wrong)
    with pytest.raises(InkmillError, match="does not read what torch reads"):
        export(untrained(tmp_path, "model.sequence=none"))
    assert not list(tmp_path.glob("*.onnx"))
    assert figures(tmp_path)["string_parity"] == 0.0
    assert '"FAILURE"' in (tmp_path / "export" / "status.json").read_text("utf-8")


def test_a_refusal_tells_the_cause_in_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Any, **settings: Any) -> None:
        raise RuntimeError("\x1b[96mThis is step 1/3\x1b[0m\n- Modify the model") from ValueError(
            "\n  \x1b[1mone width\x1b[0m only\nmore"
        )

    model = build_recognizer(load_spec(None, ["model.backbone=Tiny", "model.input_resize=height"]).model, 11, 6)
    monkeypatch.setattr(torch.onnx, "export", failing)
    with pytest.raises(ConfigError, match=r"Tiny cannot be exported with a free size \(one width only\): train it"):
        record(model.eval(), BEST)


def test_what_cannot_be_exported_or_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"profile=paddle is for .*=CTC, .* not prediction=Slots"):
        export(untrained(tmp_path, "model.sequence=none", "model.prediction=Slots", "export.profile=paddle"))
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    for name in ("junk.onnx", "missing.onnx"):
        with pytest.raises(ModelFileError):
            inkmill.load(tmp_path / name)


def test_the_model_itself_is_not_overwritten_and_the_name_ends_in_onnx(tmp_path: Path) -> None:
    spec = untrained(tmp_path, "model.backbone=Tiny", "model.sequence=none")
    checkpoint = Path(str(spec.export.checkpoint))
    before = checkpoint.read_bytes()
    for name in (checkpoint, tmp_path / "reader.bin"):
        spec.export.onnx_file = str(name)
        with pytest.raises(ConfigError, match=r"expected a name that ends in \.onnx"):
            export(spec)
    assert checkpoint.read_bytes() == before


def test_the_file_goes_to_the_folder_of_export_and_a_line_tells_of_its_key(tmp_path: Path) -> None:
    spec = untrained(tmp_path, "model.sequence=none")
    spec.export.onnx_file, spec.export.results_dir, spec.encryption_key = None, str(tmp_path / "there"), "nvidia_tao"
    said = io.StringIO()
    path = export(spec, console=Console(file=said, width=300), crops=3)
    assert path == tmp_path / "there" / Path(str(spec.export.checkpoint)).with_suffix(".onnx").name
    assert inkmill.load(path, "cpu").task.name == "recognition"  # without a key
    assert "model files are written plain" in said.getvalue()
