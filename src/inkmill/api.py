"""The public functions: load a reader and read, train, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inkmill.errors import ConfigError
from inkmill.runtime.reader import BaseReader, load_reader
from inkmill.tasks.recognition.decoder import Reading

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.training.run import TrainResult

__all__ = ["Reading", "evaluate", "load", "train"]


def load(
    path: str | Path, device: str | None = None, *, encryption_key: str | None = None, **decoding: Any
) -> BaseReader:
    """Return the reader of a model file: `inkmill.load("best_accuracy.safetensors").read(["a.png"])`.

    Args:
        path: a .safetensors or .pth file of `inkmill train`, which needs torch, or a .onnx file of `inkmill export`,
            which does not.
        device: "cpu" or "cuda"; by default the GPU where there is one.
        encryption_key: of an encrypted file: env:NAME, file:PATH or the passphrase.
        decoding: how predictions are chosen, options of the model's task. A text reader takes `beam_width`, of CTC's
            prefix beam search (1 is greedy), and `words`, the only texts that may be read (a lexicon).

    Raises:
        ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
        MissingExtraError: a torch file, and torch is not installed.
        ConfigError: no such device; an option that the task or this model does not have.
    """
    reader = load_reader(path, device, encryption_key)
    if decoding:
        reader.use(reader.task.decoder(**decoding))
    return reader


def train(spec: Spec | str | Path | None = None, **overrides: Any) -> TrainResult:
    """Train a model and return where it is and how good it is.

    Args:
        spec: a Spec, a spec file, or the name of a preset; without it the defaults count.
        overrides: `dotted_key=value` with the dots written as double underscores: `train__num_epochs=3`.

    Raises:
        InkmillError: anything a user can fix.
    """
    from inkmill.training.run import train as run

    return run(_spec(spec, overrides))


def evaluate(spec: Spec | str | Path | None = None, **overrides: Any) -> dict[str, Any]:
    """Score a model on the test sets of a spec and return its metrics.

    Args:
        spec: a Spec, a spec file, or the name of a preset; without it the defaults count.
        overrides: as for `train`.

    Raises:
        InkmillError: anything a user can fix.
    """
    from inkmill.runtime.evaluate import evaluate as run

    return run(_spec(spec, overrides))


def _spec(spec: Spec | str | Path | None, overrides: dict[str, Any]) -> Spec:
    from inkmill.config.load import load_spec
    from inkmill.config.spec import Spec as SpecClass

    if isinstance(spec, SpecClass):
        if overrides:
            raise ConfigError("give overrides with a spec file; a Spec object is changed by its own attributes")
        return spec
    return load_spec(spec, [(key.replace("__", "."), _plain(value)) for key, value in overrides.items()])


def _plain(value: Any) -> Any:
    """Return a value with paths as text, which is how a spec holds them."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
