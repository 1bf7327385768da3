"""The deliverable: one safetensors file that alone is enough to read with.

The weights carry the model's header, so nothing travels beside them and nothing is unpickled.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from inkmill.crypt import Key, is_encrypted, read_plain, sealed
from inkmill.errors import ConfigError, ModelFileError
from inkmill.files import explain, write_bytes_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import write_model_card
from inkmill.modelfile.safe_header import open_plain, read_metadata, with_digest
from inkmill.nn.narrow import Cuts, cut, find_cuts, runs
from inkmill.tasks.model import TaskModel

_STATISTICS = re.compile(r"\.(running_mean|running_var|num_batches_tracked)$")
MAX_WHOLE = 1 << 28
"""Parameters of the model that a pruned one is cut from, which is built on the way: 1 GiB."""


def save_model(path: Path, weights: Mapping[str, Tensor], header: ModelHeader, key: Key | None = None) -> None:
    """Write a model file and its card, atomically; the file is encrypted where there is a key.

    Raises:
        OutputError: the place cannot be written or the disk is full.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_bytes_atomic(path, sealed(with_digest(to_bytes(tensors, metadata={"inkmill": header.to_json()})), key))
    trained = [tensor.numel() for name, tensor in tensors.items() if not _STATISTICS.search(name)]
    write_model_card(path, header, sum(trained))


def read_weights(path: Path, key: Key | None = None) -> tuple[dict[str, Tensor], ModelHeader]:
    """Read weights and header of a model (.safetensors) or of a training checkpoint (.pth).

    Raises:
        ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
    """
    weights, header = read_any(path, key)
    if header is None:
        raise ModelFileError(
            f"{path}: no model of inkmill, for it has no header that says its task and input; "
            f"train from it with train.pretrained_model_path={path}, and read with the file that training writes"
        )
    return weights, header


def read_any(path: Path, key: Key | None = None) -> tuple[dict[str, Any], ModelHeader | None]:
    """Read weights and header of a file of inkmill, or what another program's file holds, without a header.

    Raises:
        ModelFileError: missing or damaged, encrypted with another key, or it holds code.
    """
    if not path.is_file():
        raise ModelFileError(
            f"{path}: no such model file; give the .safetensors or .pth file that `inkmill train` wrote"
        )
    if path.suffix == ".onnx":
        raise ModelFileError(
            f"{path}: an exported model, whose weights are fixed; give the .safetensors or .pth file it was made from"
        )
    if path.suffix == ".safetensors":
        return _from_safetensors(path, key)
    state = load_checkpoint(path, key)
    if "header" not in state or "model" not in state:
        return state, None
    weights = state["model"]
    if not isinstance(weights, dict) or not all(map(_is_weight, weights.items())):
        raise ModelFileError(f"{path}: damaged, for its weights are no tensors")
    if sum(tensor.numel() * tensor.element_size() for tensor in weights.values()) > path.stat().st_size:
        raise ModelFileError(f"{path}: its weights claim more bytes than the file has; refused")
    return weights, ModelHeader.from_json(state["header"], str(path))


def _is_weight(item: tuple[object, object]) -> bool:
    name, tensor = item
    return isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided


def load_model(path: Path, device: str | torch.device = "cpu", key: Key | None = None) -> tuple[TaskModel, ModelHeader]:
    """Return the model of a file, in evaluation mode on `device`, with its header; a pruned one in its own sizes.

    Raises:
        ModelFileError: missing, damaged, encrypted with another key, or its weights do not fit its header.
    """
    weights, header = read_weights(path, key)
    cuts = fitting_cuts(path, header, weights)
    model = _build(path, header)
    cut(model, cuts)
    _load_weights(path, model, weights)
    if cuts and not runs(model):
        raise ModelFileError(
            f"{path}: its weights do not fit its header: some are smaller, and not as pruning leaves them"
        )
    return model.to(device).eval(), header


def fitting_cuts(path: Path, header: ModelHeader, weights: Mapping[str, Tensor]) -> Cuts:
    """Return by how much a pruned file's tensors are smaller than its header's, nothing for a whole one.

    Found on a model without memory, for a header may promise more than the file holds.

    Raises:
        ModelFileError: the weights do not fit the header.
    """
    with torch.device("meta"):
        whole = _build(path, header)
    cuts = find_cuts(whole.state_dict(), weights)
    if cuts and sum(tensor.numel() for tensor in whole.parameters()) > MAX_WHOLE:
        raise ModelFileError(
            f"{path}: pruned from a model of more than {MAX_WHOLE:,} parameters, which is not believed"
        )
    with torch.device("meta"):
        cut(whole, cuts)
        _load_weights(path, whole, weights)
    return cuts


def _build(path: Path, header: ModelHeader) -> TaskModel:
    try:
        return header.open_task().build(header.model.model_copy(update={"backbone_pretrained": False}))
    except ConfigError as error:
        raise ModelFileError(f"{path}: its header describes no model that can be built: {error}") from error


def _load_weights(path: Path, model: TaskModel, weights: Mapping[str, Tensor]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # into the model without memory nothing is copied, which is the purpose
            model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelFileError(
            f"{path}: its weights do not fit its header: {str(error).splitlines()[-1].strip()}"
        ) from error


def load_checkpoint(path: Path, key: Key | None = None) -> dict[str, Any]:
    """Return what a .pth file holds; only tensors and plain values are ever unpickled.

    Raises:
        ModelFileError: damaged, encrypted with another key, or a file that holds code (a pickled model).
    """
    content = read_plain(path, key) if is_encrypted(path) else None
    try:
        with open_plain(path, content) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch wonders about is said by the error that follows
            _refuse_bombs(file, path)
            state = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(state, dict) and "header" in state:  # files of other programs may be without checksums
                _check_sums(file, path)
    except ModelFileError:
        raise
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such checkpoint") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({explain(error)})") from error
    except Exception as error:  # torch.load raises whatever the damaged bytes lead to
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise ModelFileError(
                f"{path}: holds a pickled model, which could run code when loaded; "
                "save its state_dict() with the program that wrote it and give that file"
            ) from error
        raise ModelFileError(f"{path}: damaged, or not a PyTorch checkpoint") from error
    if not isinstance(state, dict):
        raise ModelFileError(f"{path}: holds a {type(state).__name__}, expected a checkpoint or a state_dict")
    return state


def _refuse_bombs(file: BinaryIO, path: Path) -> None:
    """A checkpoint is a zip of stored entries; torch allocates what the entries claim, whatever the file holds."""
    size = file.seek(0, os.SEEK_END)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
        if any(entry.compress_type for entry in entries) or sum(entry.file_size for entry in entries) > size:
            raise ModelFileError(f"{path}: its entries claim more bytes than the file has; refused")
    file.seek(0)


def _check_sums(file: BinaryIO, path: Path) -> None:
    """torch writes CRCs and does not look at them: a flipped bit in a weight would only read a little worse."""
    with zipfile.ZipFile(file) as archive:
        if archive.testzip() is not None:
            raise ModelFileError(f"{path}: damaged, for its bytes are not those that were written; copy it once more")


def _from_safetensors(path: Path, key: Key | None) -> tuple[dict[str, Tensor], ModelHeader | None]:
    content = read_plain(path, key) if is_encrypted(path) else None
    try:
        with open_plain(path, content) as file:
            metadata = read_metadata(file, str(path))
        weights = from_bytes(content) if content is not None else _mapped(path)
    except SafetensorError as error:
        raise ModelFileError(f"{path}: damaged, or not a safetensors file ({error})") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({explain(error)})") from error
    header = ModelHeader.from_json(metadata["inkmill"], str(path)) if "inkmill" in metadata else None
    return weights, header


def _mapped(path: Path) -> dict[str, Tensor]:
    try:
        str(path).encode()
    except UnicodeEncodeError:  # a name of other bytes, which safetensors does not open
        return from_bytes(path.read_bytes())
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
