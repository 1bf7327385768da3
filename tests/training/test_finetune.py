from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import inkmill
from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.config.train import TrainSpec
from inkmill.errors import CharsetError, ConfigError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.model import Recognizer, build_recognizer
from inkmill.tasks.recognition.task import Recognition
from inkmill.training.finetune import RemapReport, start_from

DIGITS = Charset(tuple("0123456789"))
OTHERS = Charset(tuple("z9870"))
SMALL: dict[str, Any] = {"backbone": "VGG", "feature_channel": 16, "hidden_size": 12, "sequence": "none"}
Shapes = dict[str, tuple[int, ...]]
CONVOLUTIONS: Shapes = {
    f"FeatureExtraction.ConvNet.{at}.weight": shape
    for at, shape in {
        0: (2, 1, 3, 3),
        3: (4, 2, 3, 3),
        6: (8, 4, 3, 3),
        8: (8, 8, 3, 3),
        11: (16, 8, 3, 3),
        14: (16, 16, 3, 3),
        18: (16, 16, 2, 2),
    }.items()
}
BIASES: Shapes = {
    f"FeatureExtraction.ConvNet.{at}.bias": (size,) for at, size in {0: 2, 3: 4, 6: 8, 8: 8, 18: 16}.items()
}
NORMS: Shapes = {
    f"FeatureExtraction.ConvNet.{at}.{part}": (16,)
    for at in (12, 15)
    for part in ("weight", "bias", "running_mean", "running_var")
}
HEADS: dict[str, Shapes] = {
    "CTC": {"Prediction.weight": (11, 16), "Prediction.bias": (11,)},
    "Attn": {
        "Prediction.attention_cell.i2h.weight": (12, 16),
        "Prediction.attention_cell.h2h.weight": (12, 12),
        "Prediction.attention_cell.h2h.bias": (12,),
        "Prediction.attention_cell.score.weight": (1, 12),
        "Prediction.attention_cell.rnn.weight_ih": (48, 16 + 12),
        "Prediction.attention_cell.rnn.weight_hh": (48, 12),
        "Prediction.attention_cell.rnn.bias_ih": (48,),
        "Prediction.attention_cell.rnn.bias_hh": (48,),
        "Prediction.generator.weight": (12, 12),
        "Prediction.generator.bias": (12,),
    },
}


def clova(prediction: str = "CTC") -> dict[str, Tensor]:
    """Ten digits read by a small CRNN of deep-text-recognition-benchmark; every value is another."""
    shapes = {**CONVOLUTIONS, **BIASES, **NORMS, **HEADS[prediction]}
    starts = torch.tensor([math.prod(shape) for shape in shapes.values()]).cumsum(0).tolist()
    numbers = torch.linspace(0.01, 1, starts[-1])
    values = {
        name: numbers[end - math.prod(shape) : end].reshape(shape)
        for (name, shape), end in zip(shapes.items(), starts, strict=True)
    }
    return values | {f"FeatureExtraction.ConvNet.{at}.num_batches_tracked": torch.tensor(9) for at in (12, 15)}


def fresh(charset: Charset, prediction: str = "CTC", **keys: Any) -> Recognizer:
    torch.manual_seed(0)
    spec = ModelSpec(prediction=prediction, **{**SMALL, **keys})
    return build_recognizer(spec, make_codec(prediction, charset, 5).num_classes, 5)


def started(path: Path, charset: Charset, listed: Charset | None, **keys: Any) -> tuple[Recognizer, RemapReport]:
    model = fresh(charset, **keys)
    spec = Spec(model=model.spec)
    if listed is not None:
        file = path.with_name("characters.txt")
        listed.save(file)
        spec.train = TrainSpec(pretrained_model_path=str(path), pretrained_character_list=str(file))
    return model, start_from(model, Recognition(model.spec, charset, 5), path, spec)


def rows(model: Recognizer) -> dict[str, Tensor]:
    return dict(model.head.state_dict())


@pytest.fixture
def weights_file(tmp_path: Path) -> Path:
    path = tmp_path / "crnn.pth"
    torch.save(clova(), path)
    return path


def as_data_parallel(weights: dict[str, Tensor], path: Path) -> None:
    """The form of CLOVA's own files: names of DataParallel, the container that torch wrote before 1.6."""
    named = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save(named, path, _use_new_zipfile_serialization=False)


def as_lightning(weights: dict[str, Tensor], path: Path) -> None:
    state = {f"model.{name}": tensor for name, tensor in weights.items()}
    torch.save({"state_dict": state, "epoch": 3, "pytorch-lightning_version": "2.5"}, path)


def as_compiled(weights: dict[str, Tensor], path: Path) -> None:
    torch.save({"model": {f"_orig_mod.module.{name}": tensor for name, tensor in weights.items()}}, path)


def as_safetensors(weights: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)


@pytest.mark.parametrize("prediction", ["CTC", "Attn"])
@pytest.mark.parametrize("write", [as_data_parallel, as_lightning, as_compiled, as_safetensors])
def test_every_tensor_of_clovas_file_is_taken(
    write: Callable[[dict[str, Tensor], Path], None], prediction: str, tmp_path: Path
) -> None:
    path = tmp_path / ("weights.safetensors" if write is as_safetensors else "weights.pth")
    theirs = clova(prediction)
    write(theirs, path)
    model, report = started(path, DIGITS, DIGITS, prediction=prediction)
    assert (report.fresh, report.unused, report.taken) == ({}, [], len(theirs))
    taken = sorted(tensor.double().sum().item() for tensor in model.state_dict().values())
    assert taken == sorted(tensor.double().sum().item() for tensor in theirs.values())


@pytest.mark.parametrize("prediction", ["CTC", "Attn"])
def test_listed_characters_bring_their_rows_with_them(prediction: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    theirs = clova(prediction)
    torch.save(theirs, path)
    untouched = rows(fresh(OTHERS, prediction))
    model, report = started(path, OTHERS, DIGITS, prediction=prediction)
    assert report.classes_new == ("z",)
    assert set("9870") <= set(report.classes_kept)
    specials = model.head.specials
    ours = rows(model)
    layer = "Prediction" if prediction == "CTC" else "Prediction.generator"
    for part in ("weight", "bias"):
        new, old = ours[f"classes.{part}"], theirs[f"{layer}.{part}"]
        assert torch.equal(new[:specials], old[:specials])
        assert torch.equal(new[specials], untouched[f"classes.{part}"][specials])  # z, which the file does not know
        assert torch.equal(new[specials + 1 :], old[[specials + int(char) for char in "9870"]])
    if prediction == "Attn":  # the cell is told the class before as a one-hot, after the 16 features
        new, old = ours["cell.weight_ih"], theirs["Prediction.attention_cell.rnn.weight_ih"]
        assert torch.equal(new[:, : 16 + specials], old[:, : 16 + specials])
        assert torch.equal(new[:, 16 + specials + 1 :], old[:, [16 + specials + int(char) for char in "9870"]])


def test_without_a_list_the_head_starts_fresh_and_the_report_says_what_to_give(weights_file: Path) -> None:
    _, report = started(weights_file, DIGITS, None)
    assert report.fresh.keys() == {"head.classes.weight", "head.classes.bias"}
    assert report.lines() == [
        f"{len(clova()) - 2} tensors taken, 2 start fresh, 0 of the file unused",
        *(
            f"  fresh: head.classes.{part} (the file does not say which characters its rows are: "
            "give train.pretrained_character_list)"
            for part in ("weight", "bias")
        ),
    ]


def test_a_list_of_another_length_is_refused_with_both_numbers(weights_file: Path) -> None:
    with pytest.raises(CharsetError, match=r"lists 5 characters, but the head of .*crnn\.pth has 10: give the list"):
        started(weights_file, DIGITS, OTHERS)


def test_a_list_for_a_file_that_has_its_characters_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reader.safetensors"
    model = fresh(DIGITS)
    save_model(path, model.state_dict(), ModelHeader.of(Recognition(model.spec, DIGITS, 5)))
    with pytest.raises(ConfigError, match=r"holds its characters itself: leave train\.pretrained_character_list out"):
        started(path, DIGITS, DIGITS)
    assert started(path, OTHERS, None)[1].classes_kept == ("[blank]", *"9870")


@pytest.mark.parametrize("prediction", ["Attn", "Slots"])
def test_the_head_of_another_kind_is_not_taken(prediction: str, weights_file: Path) -> None:
    _, report = started(weights_file, DIGITS, DIGITS, prediction=prediction)
    assert report.fresh["head.classes.bias"] == f"the head of the file is CTC, here it is {prediction}"
    assert (report.classes_kept, report.classes_new) == ((), ())


def test_what_the_model_has_no_place_for_is_counted_by_stage(weights_file: Path) -> None:
    model = fresh(DIGITS, backbone="Tiny")
    with pytest.raises(ModelFileError, match=r"none of its 24 tensors fits this model; give the architecture"):
        start_from(model, Recognition(model.spec, DIGITS, 5), weights_file, Spec())
    _, report = started(weights_file, DIGITS, DIGITS, backbone="Tiny", hidden_size=16, sequence="BiLSTM")
    assert "  unused: backbone (22 tensors)" in report.lines()


def test_of_two_tensors_with_one_plain_name_the_second_is_unused(tmp_path: Path) -> None:
    path = tmp_path / "twice.pth"
    torch.save(clova() | {"model.Prediction.bias": torch.zeros(11)}, path)
    model, report = started(path, DIGITS, DIGITS)
    assert report.unused == ["model.Prediction.bias"]
    assert torch.equal(rows(model)["classes.bias"], clova()["Prediction.bias"])


def test_reading_with_such_a_file_is_one_sentence_that_says_what_to_do(weights_file: Path, tmp_path: Path) -> None:
    as_safetensors(clova(), tmp_path / "crnn.safetensors")
    for path in (weights_file, tmp_path / "crnn.safetensors"):
        with pytest.raises(ModelFileError) as caught:
            inkmill.load(path)
        assert str(caught.value) == (
            f"{path}: no model of inkmill, for it has no header that says its task and input; "
            f"train from it with train.pretrained_model_path={path}, and read with the file that training writes"
        )
