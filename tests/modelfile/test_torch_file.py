from __future__ import annotations

import os
import resource
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from inkmill.config.model import ModelSpec
from inkmill.crypt import Key
from inkmill.errors import ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import load_checkpoint, load_model, read_any, read_weights, save_model
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import Recognizer, build_recognizer
from inkmill.tasks.recognition.task import Recognition


@pytest.fixture
def model() -> Recognizer:
    torch.manual_seed(0)
    return build_recognizer(ModelSpec(backbone="Tiny", sequence="none", input_width=32), 3, 5)


@pytest.fixture
def card(model: Recognizer) -> ModelHeader:
    return ModelHeader.of(Recognition(model.spec, Charset(("a", "b")), 5))


def test_a_reader_comes_back_with_its_weights_and_card(model: Recognizer, card: ModelHeader, tmp_path: Path) -> None:
    path = tmp_path / "reader.safetensors"
    save_model(path, model.to(memory_format=torch.channels_last).state_dict(), card)
    again, its_card = load_model(path)
    assert its_card == card
    assert not again.training
    images = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.allclose(again(images), model.eval()(images), atol=1e-5)


def test_files_without_a_card_are_given_as_they_are(tmp_path: Path) -> None:
    weights = {"a.weight": torch.ones(2)}
    save_file(weights, tmp_path / "a.safetensors")
    torch.save({"state_dict": weights}, tmp_path / "a.pth")
    assert torch.equal(read_any(tmp_path / "a.safetensors")[0]["a.weight"], weights["a.weight"])
    assert read_any(tmp_path / "a.pth")[0].keys() == {"state_dict"}
    for name in ("a.safetensors", "a.pth"):
        with pytest.raises(ModelFileError, match=r"no model of inkmill.*train\.pretrained_model_path="):
            read_weights(tmp_path / name)


def test_weights_that_do_not_fit_the_card_are_refused(model: Recognizer, card: ModelHeader, tmp_path: Path) -> None:
    path = tmp_path / "reader.safetensors"
    other = card.task_header | {"charset": ["a", "b", "c"]}
    save_model(path, model.state_dict(), card.model_copy(update={"task_header": other}))
    with pytest.raises(ModelFileError, match=r"reader\.safetensors: its weights do not fit its header: "):
        load_model(path)


@pytest.mark.parametrize("weights", [3, [1, 2], {"head.classes.bias": "none"}])
def test_a_checkpoint_whose_weights_are_no_tensors_is_damaged(weights: Any, card: ModelHeader, tmp_path: Path) -> None:
    path = tmp_path / "damaged.pth"
    torch.save({"header": card.to_json(), "model": weights}, path)
    with pytest.raises(ModelFileError, match=r"damaged\.pth: damaged, for its weights are no tensors"):
        load_model(path)


def test_a_card_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "damaged.pth"
    torch.save({"header": 3, "model": {"a": torch.ones(1)}}, path)
    with pytest.raises(ModelFileError, match="not a model's header"):
        load_model(path)


def test_an_encrypted_reader_is_read_with_its_key_alone(model: Recognizer, card: ModelHeader, tmp_path: Path) -> None:
    path = tmp_path / "reader.safetensors"
    save_model(path, model.state_dict(), card, Key("k"))
    assert b"head.classes" not in path.read_bytes()
    weights, its_card = read_weights(path, Key("k"))
    assert its_card == card
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ModelFileError, match="encrypted; give its key"):
        read_any(path)
    with pytest.raises(ModelFileError, match="this encryption key does not open it"):
        load_model(path, key=Key("another"))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_flipped_bit_in_a_weight_is_damage(suffix: str, model: Recognizer, card: ModelHeader, tmp_path: Path) -> None:
    path = tmp_path / f"reader{suffix}"
    save_model(tmp_path / "reader.safetensors", model.state_dict(), card)
    torch.save({"header": card.to_json(), "model": model.state_dict()}, tmp_path / "reader.pth")
    assert load_model(path)[1] == card
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=rf"reader\{suffix}: damaged, for its bytes are not those"):
        load_model(path)


def test_a_header_that_promises_too_much_costs_nothing(model: Recognizer, card: ModelHeader, tmp_path: Path) -> None:
    huge = card.model_copy(update={"model": card.model.model_copy(update={"sequence": "BiLSTM", "hidden_size": 8192})})
    path = tmp_path / "huge.safetensors"
    save_model(path, model.state_dict(), huge)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError, match="its weights do not fit its header"):
        load_model(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10  # the BiLSTM alone would be 4 GiB
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelFileError, match="a header of 1,099,511,627,776 bytes"):
        load_model(path)


def test_a_checkpoint_whose_entries_are_compressed_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(ModelFileError, match="its entries claim more bytes than the file has"):
        load_checkpoint(tmp_path / "bomb.pth")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nothing\.pth: no such checkpoint"):
        load_checkpoint(tmp_path / "nothing.pth")
    with pytest.raises(ModelFileError, match=r"cannot be read .*folder; a file was expected"):
        load_checkpoint(tmp_path)
    with pytest.raises(ModelFileError, match="no such model file"):
        load_model(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_not_called_damaged(tmp_path: Path) -> None:
    for name in ("a.pth", "a.safetensors"):
        (tmp_path / name).touch(mode=0o000)
        with pytest.raises(ModelFileError, match=r"cannot be read .*permission denied"):
            read_any(tmp_path / name)


def test_weights_that_repeat_one_number_for_ever_are_refused(
    model: Recognizer, card: ModelHeader, tmp_path: Path
) -> None:
    spread = {
        name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in model.state_dict().items()
    }
    torch.save({"model": spread, "header": card.to_json()}, tmp_path / "bomb.pth")
    with pytest.raises(ModelFileError, match="its weights claim more bytes than the file has"):
        load_model(tmp_path / "bomb.pth")


def test_an_exported_reader_is_not_called_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "reader.onnx").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="an exported model"):
        load_model(tmp_path / "reader.onnx")
