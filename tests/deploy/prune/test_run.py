from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import inkmill
from inkmill.cli.main import run
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.deploy.export.run import export
from inkmill.deploy.prune.run import count_macs, prune
from inkmill.errors import ConfigError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import load_model, read_weights, save_model
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.tasks.recognition.task import Recognition


def untrained(folder: Path, *overrides: str) -> Spec:
    """Return a spec whose prune.checkpoint is a reader with fresh weights."""
    torch.manual_seed(0)
    small = ["model.backbone=VGG", "model.feature_channel=32", "model.hidden_size=16", "model.input_width=64"]
    places = [f"results_dir={folder}", f"prune.checkpoint={folder / 'reader.safetensors'}"]
    spec = load_spec(None, [*small, *places, "prune.prune_setting.granularity=2", *overrides])
    card = ModelHeader.of(Recognition(spec.model, Charset(tuple("0123456789")), 6), {"scores": {"cer": 0.1}})
    codec = make_codec(spec.model.prediction, card.open_task().charset, 6)
    model = build_recognizer(spec.model, codec.num_classes, 6)
    save_model(folder / "reader.safetensors", model.state_dict(), card)
    return spec


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_file_alone_brings_the_narrower_model_back(suffix: str, tmp_path: Path) -> None:
    path = prune(untrained(tmp_path, "model.TPS=true", f"prune.pruned_file={tmp_path}/small{suffix}"))
    (model, card), (again, _) = load_model(path), load_model(path)
    weights, _ = read_weights(path)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == {
        name: tuple(tensor.shape) for name, tensor in weights.items()
    }
    images = torch.rand(2, 1, 32, 64)
    assert torch.equal(model(images), again(images))
    assert card.provenance["made"][-1]["verb"] == "prune"
    assert "scores" not in card.provenance  # they were the whole reader's
    told = json.loads(path.with_name(f"{path.name}.card.json").read_text("utf-8"))
    assert [name.partition(",")[2][:9] for name in told["speeds"]] == [" batch 1,", " batch 32"]
    assert told["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_the_report_tells_size_work_speed_and_accuracy_before_and_after(
    tmp_path: Path, writable_captchas: Path
) -> None:
    few = writable_captchas / "few_to_prune.tsv"
    few.write_text("\n".join((writable_captchas / "labels.tsv").read_text("utf-8").splitlines()[:8]) + "\n", "utf-8")
    spec = untrained(tmp_path, f"evaluate.test={few}", "evaluate.workers=0")
    path = prune(spec)
    report = json.loads((tmp_path / "prune" / "metrics.json").read_text("utf-8"))
    before, after = report["before"], report["after"]
    assert after["parameters"] == sum(p.numel() for p in load_model(path)[0].parameters()) < before["parameters"]
    assert 0 < after["macs"] < before["macs"]
    assert after["images_per_second"]["batch_32"]["median"] > 0
    assert (before["samples"], after["samples"], before["word_accuracy"]) == (8, 8, 0.0)
    assert {"name": "backbone.layers.0.0", "before": 4, "after": 2} in report["layers"]


def test_multiply_accumulates_are_those_of_the_layers(tmp_path: Path) -> None:
    untrained(tmp_path)
    macs = count_macs(load_model(tmp_path / "reader.safetensors")[0])
    maps = [(32 * 64, 4, 1), (16 * 32, 8, 4), (8 * 16, 16, 8), (8 * 16, 16, 16), (4 * 16, 32, 16), (4 * 16, 32, 32)]
    convolutions = sum(pixels * out * inside * 9 for pixels, out, inside in maps) + 15 * 32 * 32 * 4
    recurrent = 15 * 2 * 64 * ((32 + 16) + (16 + 16)) + 2 * 15 * 32 * 16
    assert macs == convolutions + recurrent + 15 * 16 * 11


@pytest.mark.slow
def test_onnx_reads_what_the_pruned_reader_reads(tmp_path: Path, captchas: Path) -> None:
    spec = untrained(tmp_path, "model.TPS=true")
    spec.export.checkpoint = str(prune(spec))
    images = sorted((captchas / "images").iterdir())[:7]
    ours = inkmill.load(spec.export.checkpoint, device="cpu").read(images)
    theirs = inkmill.load(export(spec)).read(images)
    assert [reading.text for reading in theirs] == [reading.text for reading in ours]


def test_pruning_twice_goes_on_from_what_is_left(tmp_path: Path) -> None:
    spec = untrained(tmp_path)
    spec.prune.checkpoint = str(prune(spec))
    twice = prune(spec)
    assert twice.name == "reader_pruned_pruned.safetensors"
    assert load_model(twice)[0].backbone.out_channels == 12  # 32, 20, 12


def test_mistakes_are_one_sentence_and_leave_the_checkpoint_as_it_was(tmp_path: Path) -> None:
    spec = untrained(tmp_path)
    original = (tmp_path / "reader.safetensors").read_bytes()
    wrong = {
        f"{tmp_path}/reader.safetensors": "is the model itself",
        f"{tmp_path}/reader.onnx": r"ends in \.safetensors",
    }
    for name, message in wrong.items():
        spec.prune.pruned_file = name
        with pytest.raises(ConfigError, match=message):
            prune(spec)
    assert (tmp_path / "reader.safetensors").read_bytes() == original
    spec.prune.pruned_file, spec.prune.checkpoint = None, f"{tmp_path}/missing.safetensors"
    with pytest.raises(ModelFileError, match="no such model file"):
        prune(spec)
    with pytest.raises(ConfigError, match=r"prune\.prune_setting\.amount"):
        load_spec(None, ["prune.prune_setting.amount=1.5"])


def test_the_verb_says_what_it_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["prune"]) == 2
    assert "prune needs prune.checkpoint" in capsys.readouterr().err
    untrained(tmp_path)
    made = f"{tmp_path}/small.safetensors"
    keys = [f"results_dir={tmp_path}", "prune.prune_setting.granularity=2"]
    assert run(["prune", f"{tmp_path}/reader.safetensors", made, *keys]) == 0
    shown = capsys.readouterr().out
    assert "parameters" in shown
    assert f"train.pretrained_model_path={made}" in shown.replace("\n", "")
