"""Fine-tuning: take the weights of any checkpoint, matching the rows of the output layer by class.

The tensors of an output layer have one row (or column) a class. Two models rarely have the same classes, so copying
rows by position would give each class the weights of another; here each row goes to the class of the same name (for
text the same character), and what could not be taken is counted and shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inkmill.config.spec import Spec
from inkmill.crypt import Key
from inkmill.errors import ConfigError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import fitting_cuts, read_any
from inkmill.nn.narrow import cut, runs
from inkmill.nn.simulate import simulate_int8
from inkmill.tasks.base import Task
from inkmill.tasks.model import Adopted, TaskModel

WRAPPERS = ("state_dict", "model", "net", "model_state_dict")
"""Keys under which other programs keep their weights."""
PREFIXES = ("module.", "model.", "_orig_mod.")
"""What DataParallel, Lightning and torch.compile put before every name."""
OF_START = {
    *("backbone_pretrained", "quantize", "pruned_graph_path", "quantize_model_path"),
    *("input_width", "input_height", "input_resize"),
}
"""Keys of `model` that may differ from those of a pruned file; the others decide the sizes of single layers."""
SHOWN = 8
"""How many tensors that start fresh the report names."""


@dataclass
class RemapReport:
    """What a fine-tuning start took from a file.

    Attributes:
        taken: tensors copied as they are.
        notes: what was noticed in the file's list of classes, one sentence each.
        smaller: tensors that were cut to the size they have in a pruned file.
        classes_kept: classes whose rows of the output layer were taken.
        classes_new: classes that start fresh.
        fresh: tensors of the model that start fresh, with the reason.
        unused: tensors of the file that the model has no place for.
        history: how the file was made, step by step, as its header says; a file without a header says nothing.
    """

    taken: int = 0
    notes: list[str] = field(default_factory=list)
    smaller: int = 0
    classes_kept: tuple[str, ...] = ()
    classes_new: tuple[str, ...] = ()
    fresh: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines for the console."""
        lines = [
            *self.notes,
            f"{self.taken} tensors taken, {len(self.fresh)} start fresh, {len(self.unused)} of the file unused",
        ]
        if self.smaller:
            lines.append(f"pruned: {self.smaller} tensors are smaller than the spec's model has them, as in the file")
        if self.classes_kept or self.classes_new:
            lines.append(
                f"output layer matched by class: {len(self.classes_kept)} kept, {len(self.classes_new)} new"
                + (f" ({_shortened(self.classes_new)})" if self.classes_new else "")
            )
        lines += [f"  fresh: {name} ({why})" for name, why in list(self.fresh.items())[:SHOWN]]
        if len(self.fresh) > SHOWN:
            lines.append(f"  and {len(self.fresh) - SHOWN} more")
        parts = Counter(name.partition(".")[0] for name in self.unused)
        lines += [f"  unused: {part} ({count} tensors)" for part, count in parts.most_common(SHOWN)]
        return lines


@dataclass(frozen=True)
class _Match:
    """Which classes of the file go where: those that both sides have."""

    to: Tensor
    places: Tensor
    count: int
    """Classes of the file."""
    kept: tuple[str, ...]
    new: tuple[str, ...]


def start_from(model: TaskModel, task: Task, path: Path, spec: Spec, key: Key | None = None) -> RemapReport:
    """Give `model` the weights of a file, as far as they fit.

    Args:
        model: a fresh network; changed in place.
        task: what it is for.
        path: a .safetensors or .pth file of inkmill, or a state_dict of another program (see `TaskModel.adopt`). A
            pruned file of inkmill makes `model` as narrow as it is, one that was trained for int8 makes it simulate
            that.
        spec: the spec of the run.
        key: opens an encrypted file.

    Raises:
        ModelFileError: the file cannot be read, or nothing in it fits this model.
        ConfigError: a pruned file of another architecture; a character list for a file that has its own.
        CharsetError: the character list has another number of characters than the file.
    """
    # 1. Open the file, and give the model its shape.
    state, header = read_any(path, key)
    adopted = _own(state, header, spec, path) if header is not None else _foreign(state, model, spec, path)
    if header is not None and header.model.quantize:
        simulate_int8(model)
    report = RemapReport(
        notes=list(adopted.notes),
        smaller=_narrow(model, adopted.weights, header, path),
        history=header.history() if header is not None else [],
    )
    # 2. Which rows of the output layer go where?
    reason = adopted.reason
    if adopted.task is not None and adopted.task.head != task.head:
        reason = f"the head of the file is {adopted.task.head}, here it is {task.head}"
    axes = model.class_axes()
    match = None if adopted.task is None or reason else _match(task.class_names, adopted.task.class_names)
    # 3. Copy tensor by tensor; what is left over in the file is unused.
    weights, count = dict(adopted.weights), len(adopted.weights)
    for name, tensor in model.state_dict().items():
        given = weights.pop(name, None)
        if given is None:
            why = "not in the file"
        elif name not in axes:
            why = _copy(tensor, given)
        else:
            why = reason if match is None else _copy_classes(tensor, given, axes[name], match)
        if why:
            report.fresh[name] = why
        else:
            report.taken += 1
    report.unused = sorted(weights)
    if report.taken == 0:
        raise ModelFileError(
            f"{path}: none of its {count} tensors fits this model; give the architecture it was made for"
        )
    if match is not None and not axes.keys() <= report.fresh.keys():
        report.classes_kept, report.classes_new = match.kept, match.new
    return report


def _own(state: dict[str, Any], header: ModelHeader, spec: Spec, path: Path) -> Adopted:
    if spec.train.pretrained_character_list:
        raise ConfigError(f"{path} holds its characters itself: leave train.pretrained_character_list out")
    return Adopted(state, header.open_task())


def _foreign(state: dict[str, Any], model: TaskModel, spec: Spec, path: Path) -> Adopted:
    weights = _tensors(state)
    if not weights:
        raise ModelFileError(f"{path}: holds no weights; give a checkpoint or a state_dict")
    return model.adopt(weights, spec, str(path))


def _narrow(model: TaskModel, weights: Mapping[str, Tensor], header: ModelHeader | None, path: Path) -> int:
    """Make `model` as narrow as a pruned file, and return how many of its tensors that changes."""
    if header is None:
        return 0
    cuts = fitting_cuts(path, header, weights)
    theirs, ours = header.model, model.spec
    names = [name for name in type(ours).model_fields if name not in OF_START]
    differ = [name for name in names if getattr(theirs, name) != getattr(ours, name)]
    if cuts and differ:
        settings = " ".join(f"model.{name}={str(getattr(theirs, name)).replace('True', 'true')}" for name in differ)
        raise ConfigError(f"{path} is pruned, so the model must be the one it was pruned from: give {settings}")
    cut(model, cuts)
    if cuts and not runs(model):
        raise ModelFileError(
            f"{path}: some of its weights are smaller than its header's, and not as pruning leaves them"
        )
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


def _copy(tensor: Tensor, old: Tensor) -> str:
    """Copy a tensor whose shape fits; return why not."""
    if old.shape != tensor.shape:
        return f"{tuple(old.shape)} in the file, {tuple(tensor.shape)} here"
    tensor.copy_(old)
    return ""


def _match(new: tuple[str, ...], old: tuple[str, ...]) -> _Match:
    position = {name: index for index, name in enumerate(old)}
    shared = [(index, position[name]) for index, name in enumerate(new) if name in position]
    to, places = torch.tensor(shared, dtype=torch.int64).reshape(-1, 2).T
    kept = tuple(name for name in new if name in position)
    return _Match(to, places, len(old), kept, tuple(name for name in new if name not in position))


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


def _shortened(names: tuple[str, ...], most: int = 40) -> str:
    text = ("" if all(len(name) == 1 for name in names) else ", ").join(names)
    return text if len(text) <= most else f"{text[:most]}…"
