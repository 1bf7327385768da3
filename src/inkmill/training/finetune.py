"""Fine-tuning: take the weights of any checkpoint, matching the head's rows by character.

A head's tensors have one row (or column) a class. Two readers rarely share their characters, so copying rows by
position would give each character the weights of another; here each row goes to the same character, and what could not
be taken is counted and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from inkmill.errors import ModelFileError
from inkmill.models.file import load_checkpoint, read_weights
from inkmill.models.recognizer import Recognizer
from inkmill.text.charset import Charset

WRAPPERS = ("state_dict", "model", "net", "model_state_dict")
"""Keys under which other programs keep their weights."""
PREFIXES = ("module.", "model.", "_orig_mod.")
"""What other programs put before every name."""


@dataclass
class RemapReport:
    """What a fine-tuning start took from a file.

    Attributes:
        taken: tensors copied as they are.
        head_kept: characters whose head weights were taken.
        head_new: characters that start anew.
        fresh: tensors of the model that start anew, with the reason.
        unused: tensors of the file that the model has no place for.
    """

    taken: int = 0
    head_kept: str = ""
    head_new: str = ""
    fresh: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines for the console."""
        lines = [f"{self.taken} tensors taken, {len(self.fresh)} start anew, {len(self.unused)} of the file unused"]
        if self.head_kept or self.head_new:
            lines.append(
                f"head matched by character: {len(self.head_kept)} kept, {len(self.head_new)} new"
                + (f" ({_shortened(self.head_new)})" if self.head_new else "")
            )
        lines += [f"  anew: {name} ({why})" for name, why in list(self.fresh.items())[:8]]
        if len(self.fresh) > 8:
            lines.append(f"  and {len(self.fresh) - 8} more")
        return lines


def start_from(model: Recognizer, charset: Charset, path: Path) -> RemapReport:
    """Give `model` the weights of a file, as far as they fit.

    Args:
        model: a fresh recogniser; changed in place.
        charset: its characters.
        path: a .safetensors or .pth file of inkmill, or a state_dict of another program.

    Raises:
        ModelFileError: the file cannot be read, or nothing in it fits this model.
    """
    weights, old_charset = _weights_of(path)
    report = RemapReport()
    own = model.state_dict()
    classes = {f"head.{name}": axis for name, axis in model.head.class_axes().items()}
    with torch.no_grad():
        for name, tensor in own.items():
            old = weights.pop(name, None)
            if old is None:
                report.fresh[name] = "not in the file"
            elif name in classes:
                _remap(tensor, old, classes[name], model.head.specials, charset, old_charset, name, report)
            elif old.shape != tensor.shape:
                report.fresh[name] = f"{tuple(old.shape)} in the file, {tuple(tensor.shape)} here"
            else:
                tensor.copy_(old)
                report.taken += 1
    report.unused = sorted(weights)
    if report.taken == 0:
        raise ModelFileError(
            f"{path}: none of its {len(report.unused)} tensors fits this model; give the architecture it was made for"
        )
    return report


def _weights_of(path: Path) -> tuple[dict[str, Tensor], Charset | None]:
    if path.suffix == ".safetensors":
        weights, card = read_weights(path)
        return weights, card.characters()
    state = load_checkpoint(path)
    if "reader" in state:
        weights, card = read_weights(path)
        return weights, card.characters()
    inner = next((state[key] for key in WRAPPERS if isinstance(state.get(key), Mapping)), state)
    tensors = {_plain_name(name): value for name, value in inner.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ModelFileError(f"{path}: holds no weights")
    return tensors, None


def _plain_name(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _remap(
    tensor: Tensor,
    old: Tensor,
    place: tuple[int, int],
    specials: int,
    charset: Charset,
    old_charset: Charset | None,
    name: str,
    report: RemapReport,
) -> None:
    """Copy the rows of the decoder's own classes and of every character that both sides know.

    `place` is (dimension, offset): classes start at index `offset` of that dimension; what lies before is copied.
    """
    dimension, offset = place
    if old_charset is None:
        report.fresh[name] = "the file does not say which characters its rows are"
        return
    new_chars, old_chars = charset.chars, old_charset.chars
    rest_new = tensor.shape[:dimension] + tensor.shape[dimension + 1 :]
    rest_old = old.shape[:dimension] + old.shape[dimension + 1 :]
    if rest_new != rest_old or old.shape[dimension] != offset + specials + len(old_chars):
        report.fresh[name] = f"{tuple(old.shape)} in the file, {tuple(tensor.shape)} here"
        return
    position = {char: index for index, char in enumerate(old_chars)}
    shared = [(new, position[char]) for new, char in enumerate(new_chars) if char in position]
    head = offset + specials
    to = list(range(head)) + [head + new for new, _ in shared]
    source = list(range(head)) + [head + index for _, index in shared]
    tensor.index_copy_(dimension, torch.tensor(to), old.index_select(dimension, torch.tensor(source)).to(tensor.dtype))
    report.taken += 1
    report.head_kept = "".join(char for char in new_chars if char in position)
    report.head_new = "".join(char for char in new_chars if char not in position)


def _shortened(chars: str, most: int = 40) -> str:
    return chars if len(chars) <= most else f"{chars[:most]}…"
