"""The public functions: load a reader and read, train, evaluate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inkmill.crypt import find_key
from inkmill.errors import ConfigError, MissingExtraError, ModelFileError
from inkmill.runtime.reader import BaseReader, Reading

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.training.run import TrainResult

__all__ = ["Reading", "evaluate", "load", "train"]


def load(
    path: str | Path,
    device: str | None = None,
    *,
    encryption_key: str | None = None,
    beam_width: int = 1,
    words: Iterable[str] | None = None,
) -> BaseReader:
    """Return the reader of a model file: `inkmill.load("best_accuracy.safetensors").read(["a.png"])`.

    Args:
        path: a .safetensors or .pth file of `inkmill train`, which needs torch, or a .onnx file of `inkmill export`,
            which does not.
        device: "cpu" or "cuda"; by default the GPU where there is one.
        encryption_key: of an encrypted file: env:NAME, file:PATH or the passphrase.
        beam_width: of CTC's prefix beam search; 1 is greedy.
        words: the only texts that may be read (a lexicon).

    Raises:
        ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
        MissingExtraError: a torch file, and torch is not installed.
        ConfigError: no such device; a beam or words that this model cannot be read with.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        from inkmill.runtime.onnx import OnnxReader

        return OnnxReader(path, device, encryption_key=encryption_key, beam_width=beam_width, words=words)
    if path.suffix not in (".safetensors", ".pth"):
        raise ModelFileError(f"{path}: expected a .safetensors, .pth or .onnx file")
    try:
        from inkmill.runtime.torch_reader import TorchReader
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "train", f"reading {path.suffix} files") from error
    return TorchReader.load(path, device, find_key(encryption_key), beam_width=beam_width, words=words)


def train(spec: Spec | str | Path | None = None, **overrides: Any) -> TrainResult:
    """Train a reader and return where it is and how good it is.

    Args:
        spec: a Spec, a spec file, or the name of a preset; without it the defaults count.
        overrides: `dotted_key=value` with the dots written as double underscores: `train__num_epochs=3`.

    Raises:
        InkmillError: anything a user can mend.
    """
    from inkmill.training.run import train as run

    return run(_spec(spec, overrides))


def evaluate(spec: Spec | str | Path | None = None, **overrides: Any) -> dict[str, Any]:
    """Score a reader on the test sets of a spec and return its metrics.

    Args:
        spec: a Spec, a spec file, or the name of a preset; without it the defaults count.
        overrides: as for `train`.

    Raises:
        InkmillError: anything a user can mend.
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
