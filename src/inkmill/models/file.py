"""The deliverable: one safetensors file that alone is enough to read with.

The weights carry the reader's card in the header, so nothing travels beside them and nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from inkmill.errors import ModelFileError
from inkmill.files import explain, write_bytes_atomic
from inkmill.models.recognizer import Recognizer, build_recognizer
from inkmill.runtime.card import ReaderCard


def save_reader(path: Path, weights: Mapping[str, Tensor], card: ReaderCard) -> None:
    """Write a reader file, atomically.

    Raises:
        OutputError: the place cannot be written or the disk is full.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_bytes_atomic(path, to_bytes(tensors, metadata={"inkmill": card.to_json()}))


def read_weights(path: Path) -> tuple[dict[str, Tensor], ReaderCard]:
    """Read weights and card of a reader (.safetensors) or of a training checkpoint (.pth).

    Raises:
        ModelFileError: missing, damaged, or not written by inkmill.
    """
    weights, card = read_any(path)
    if card is None:
        raise ModelFileError(
            f"{path}: no reader of inkmill, for it does not say its input and characters; "
            f"train from it with train.pretrained_model_path={path}, and read with the file that training writes"
        )
    return weights, card


def read_any(path: Path) -> tuple[dict[str, Any], ReaderCard | None]:
    """Read weights and card of a file of inkmill, or what another program's file holds, without a card.

    Raises:
        ModelFileError: missing or damaged, or it holds code.
    """
    if not path.is_file():
        raise ModelFileError(
            f"{path}: no such model file; give the .safetensors or .pth file that `inkmill train` wrote"
        )
    if path.suffix == ".safetensors":
        return _from_safetensors(path)
    state = load_checkpoint(path)
    if "reader" not in state or "model" not in state:
        return state, None
    weights = state["model"]
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise ModelFileError(f"{path}: damaged, for its weights are no tensors")
    return weights, ReaderCard.from_json(state["reader"], str(path))


def load_reader(path: Path, device: str | torch.device = "cpu") -> tuple[Recognizer, ReaderCard]:
    """Return the model of a file, in evaluation mode on `device`, with its card.

    Raises:
        ModelFileError: missing, damaged, or its weights do not fit its card.
    """
    weights, card = read_weights(path)
    model = build_recognizer(
        card.model.model_copy(update={"backbone_pretrained": False}), card.codec().num_classes, card.max_label_length
    )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelFileError(
            f"{path}: its weights do not fit its card: {str(error).splitlines()[-1].strip()}"
        ) from error
    return model.to(device).eval(), card


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a .pth file holds; only tensors and plain values are ever unpickled.

    Raises:
        ModelFileError: damaged, or a file that holds code (a pickled model).
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
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


def _from_safetensors(path: Path) -> tuple[dict[str, Tensor], ReaderCard | None]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
    except SafetensorError as error:
        raise ModelFileError(f"{path}: damaged, or not a safetensors file ({error})") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({explain(error)})") from error
    card = ReaderCard.from_json(metadata["inkmill"], str(path)) if "inkmill" in metadata else None
    return weights, card
