"""Fine-tuning: take the weights of any checkpoint, matching the head's rows by character.

A head's tensors have one row (or column) a class. Two readers rarely share their characters, so copying rows by
position would give each character the weights of another; here each row goes to the same character, and what could not
be taken is counted and shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inkmill.crypt import Key
from inkmill.errors import CharsetError, ConfigError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import fitting_cuts, read_any
from inkmill.nn.narrow import cut, runs
from inkmill.nn.simulate import simulate_int8
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.clova_names import in_our_names
from inkmill.tasks.recognition.heads import AttentionHead, CTCHead
from inkmill.tasks.recognition.model import Recognizer

WRAPPERS = ("state_dict", "model", "net", "model_state_dict")
"""Keys under which other programs keep their weights."""
PREFIXES = ("module.", "model.", "_orig_mod.")
"""What DataParallel, Lightning and torch.compile put before every name."""
TELLING = {"head.cell.weight_ih": "Attn", "head.queries": "Slots"}
"""Tensors that tell the head of a file without a card."""
ARCHITECTURE = (
    *("TPS", "num_fiducial", "backbone", "feature_channel", "sequence", "sequence_layers", "hidden_size"),
    *("prediction", "input_channel"),
)
"""What must be as in the file where that is pruned: its sizes are those of single layers."""
SHOWN = 8
"""How many tensors that start anew the report names."""


@dataclass
class RemapReport:
    """What a fine-tuning start took from a file.

    Attributes:
        taken: tensors copied as they are.
        smaller: tensors that were cut to the size they have in a pruned file.
        head_kept: characters whose head weights were taken.
        head_new: characters that start anew.
        fresh: tensors of the model that start anew, with the reason.
        unused: tensors of the file that the model has no place for.
        history: how the file was made, step by step, as its card says; a file without a card says nothing.
    """

    taken: int = 0
    smaller: int = 0
    head_cached: str = ""
    head_new: str = ""
    fresh: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines for the console."""
        lines = [f"{self.taken} tensors taken, {len(self.fresh)} start anew, {len(self.unused)} of the file unused"]
        if self.smaller:
            lines.append(f"pruned: {self.smaller} tensors are smaller than the spec's model has them, as in the file")
        if self.head_cached or self.head_new:
            lines.append(
                f"head matched by character: {len(self.head_cached)} kept, {len(self.head_new)} new"
                + (f" ({_shortened(self.head_new)})" if self.head_new else "")
            )
        lines += [f"  anew: {name} ({why})" for name, why in list(self.fresh.items())[:SHOWN]]
        if len(self.fresh) > SHOWN:
            lines.append(f"  and {len(self.fresh) - SHOWN} more")
        parts = Counter(name.partition(".")[0] for name in self.unused)
        lines += [f"  unused: {part} ({count} tensors)" for part, count in parts.most_common(SHOWN)]
        return lines


@dataclass(frozen=True)
class _Source:
    """What a file holds: its tensors, its kind of head, and its characters where they are known."""

    weights: dict[str, Tensor]
    prediction: str
    charset: Charset | None
    card: ModelHeader | None = None

    def head_differs(self, model: Recognizer) -> str:
        """Return why no row of the head can be taken, or nothing."""
        if self.prediction != model.spec.prediction:
            return f"the head of the file is {self.prediction}, here it is {model.spec.prediction}"
        if self.charset is None:
            return "the file does not say which characters its rows are: give train.pretrained_character_list"
        return ""


@dataclass(frozen=True)
class _Match:
    """Which classes of the file go where: the decoder's own ones and the characters that both sides know."""

    to: Tensor
    places: Tensor
    count: int
    """Classes of the file."""


def start_from(
    model: Recognizer, charset: Charset, path: Path, listed: Charset | None = None, key: Key | None = None
) -> RemapReport:
    """Give `model` the weights of a file, as far as they fit.

    Args:
        model: a fresh recogniser; changed in place.
        charset: its characters.
        path: a .safetensors or .pth file of inkmill, or a state_dict of another program; the names of CLOVA's
            deep-text-recognition-benchmark and TAO OCRNet are understood. A pruned file of inkmill makes `model` as
            narrow as it is, one that was trained for int8 makes it simulate that.
        listed: the characters of such a state_dict, in class order; without them its head is not taken.
        key: opens an encrypted file.

    Raises:
        ModelFileError: the file cannot be read, or nothing in it fits this model.
        CharsetError: `listed` has another number of characters than the file.
        ConfigError: `listed` for a file that holds its characters itself; a pruned file of another architecture.
    """
    source = _open(path, listed, key)
    if source.card is not None and source.card.model.quantize:
        simulate_int8(model)
    report = RemapReport(smaller=_narrow(model, source, path), history=source.card.history() if source.card else [])
    weights, old = source.weights, source.charset
    count = len(weights)
    axes = {f"head.{name}": axis for name, axis in model.head.class_axes().items()}
    match = None if old is None or source.head_differs(model) else _match(model.head.specials, charset, old)
    for name, tensor in model.state_dict().items():
        theirs = weights.pop(name, None)
        if theirs is None:
            reason = "not in the file"
        elif name not in axes:
            reason = _copy(tensor, theirs)
        elif match is None:
            reason = source.head_differs(model)
        else:
            reason = _copy_classes(tensor, theirs, axes[name], match)
        if reason:
            report.fresh[name] = reason
        else:
            report.taken += 1
    report.unused = sorted(weights)
    if report.taken == 0:
        raise ModelFileError(
            f"{path}: none of its {count} tensors fits this model; give the architecture it was made for"
        )
    if old is not None and not axes.keys() <= report.fresh.keys():
        report.head_cached = "".join(char for char in charset.chars if char in old)
        report.head_new = old.unknown("".join(charset.chars))
    return report


def _open(path: Path, listed: Charset | None, key: Key | None) -> _Source:
    state, card = read_any(path, key)
    if card is not None:
        if listed is not None:
            raise ConfigError(f"{path} holds its characters itself: leave train.pretrained_character_list out")
        return _Source(state, card.model.prediction, card.characters(), card)
    weights = in_our_names(_tensors(state))
    if not weights:
        raise ModelFileError(f"{path}: holds no weights; give a checkpoint or a state_dict")
    prediction = next((head for name, head in TELLING.items() if name in weights), "CTC")
    if listed is not None:
        _check_count(path, weights, prediction, listed)
    return _Source(weights, prediction, listed)


def _narrow(model: Recognizer, source: _Source, path: Path) -> int:
    """Make `model` as narrow as a pruned file, and return how many of its tensors that changes."""
    if source.card is None:
        return 0
    cuts = fitting_cuts(path, source.card, source.weights)
    theirs, ours = source.card.model, model.spec
    differ = [name for name in ARCHITECTURE if getattr(theirs, name) != getattr(ours, name)]
    if cuts and differ:
        settings = " ".join(f"model.{name}={str(getattr(theirs, name)).replace('True', 'true')}" for name in differ)
        raise ConfigError(f"{path} is pruned, so the model must be the one it was pruned from: give {settings}")
    cut(model, cuts)
    if cuts and not runs(model):
        raise ModelFileError(f"{path}: some of its weights are smaller than its card's, and not as pruning leaves them")
    return len(cuts)


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of another program's file under their plain names; of equals, the later keeps its prefix."""
    inner = next((state[key] for key in WRAPPERS if isinstance(state.get(key), Mapping)), state)
    tensors: dict[str, Tensor] = {}
    for name, value in inner.items():
        if isinstance(value, Tensor):
            plain = _plain(str(name))
            tensors[str(name) if plain in tensors else plain] = value
    return tensors


def _plain(name: str) -> str:
    while prefix := next((prefix for prefix in PREFIXES if name.startswith(prefix)), None):
        name = name.removeprefix(prefix)
    return name


def _check_count(path: Path, weights: Mapping[str, Tensor], prediction: str, listed: Charset) -> None:
    bias = weights.get("head.classes.bias")
    if bias is None:
        return  # no head that we know, which the report says
    count = bias.numel() - (AttentionHead if prediction == "Attn" else CTCHead).specials
    if count != len(listed):
        raise CharsetError(
            f"train.pretrained_character_list lists {len(listed)} characters, but the head of {path} has {count}: "
            "give the list that it was trained with"
        )


def _copy(tensor: Tensor, old: Tensor) -> str:
    """Copy a tensor whose shape fits; return why not."""
    if old.shape != tensor.shape:
        return f"{tuple(old.shape)} in the file, {tuple(tensor.shape)} here"
    tensor.copy_(old)
    return ""


def _match(specials: int, new: Charset, old: Charset) -> _Match:
    position = {char: specials + index for index, char in enumerate(old.chars)}
    shared = [(specials + index, position[char]) for index, char in enumerate(new.chars) if char in position]
    to, places = torch.tensor([(number, number) for number in range(specials)] + shared).T
    return _Match(to, places, specials + len(old))


def _copy_classes(tensor: Tensor, old: Tensor, axis: tuple[int, int], match: _Match) -> str:
    """Copy the rows of matching classes; return why not.

    `axis` is (dimension, offset): classes start at index `offset` of that dimension; what lies before is copied.
    """
    dimension, offset = axis
    expected = list(tensor.shape)
    expected[dimension] = offset + match.count
    if list(old.shape) != expected:
        return f"{tuple(old.shape)} in the file, {tuple(tensor.shape)} here"
    to, places = (torch.cat([torch.arange(offset), offset + part]) for part in (match.to, match.places))
    tensor.index_copy_(dimension, to, old.index_select(dimension, places).to(tensor.dtype))
    return ""


def _shortened(chars: str, most: int = 40) -> str:
    return chars if len(chars) <= most else f"{chars[:most]}…"
