"""The public functions: load a reader and read, train, evaluate."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inkmill.errors import ConfigError
from inkmill.runtime.reader import BaseReader, load_reader
from inkmill.tasks.recognition.decoder import Reading

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.pages import Page, PageReader
    from inkmill.training.run import TrainResult

__all__ = ["Reading", "evaluate", "load", "read", "train"]


def load(
    path: str | Path | None = None, device: str | None = None, *, encryption_key: str | None = None, **decoding: Any
) -> BaseReader:
    """Return the reader of a model file: `inkmill.load("best_accuracy.safetensors").read(["a.png"])`.

    Without a file, `inkmill.load().read(["a.png"])`, it is the text reader that the package carries.

    Args:
        path: a .safetensors or .pth file of `inkmill train`, which needs torch, or a .onnx file of `inkmill export`,
            which does not; None for the reader that the package carries.
        device: "cpu" or "cuda"; by default the GPU where there is one.
        encryption_key: of an encrypted file: env:NAME, file:PATH or the passphrase.
        decoding: how predictions are chosen, options of the model's task. A text reader takes `beam_width`, of CTC's
            prefix beam search (1 is greedy), and `words`, the only texts that may be read (a lexicon).

    Raises:
        InkmillError: no path, and this installation carries no reader.
        ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
        MissingExtraError: a torch file, and torch is not installed.
        ConfigError: no such device; an option that the task or this model does not have.
    """
    reader = load_reader(path, device, encryption_key)
    if decoding:
        reader.use(reader.task.decoder(**decoding))
    return reader


def read(sources: Any, *, detector: Any = None, reader: Any = None, **options: Any) -> list[Page]:
    """Return the pages of pictures and PDFs with all their text: `inkmill.read("receipt.jpg")[0].text`.

    Args:
        sources: one or several of: a path, encoded bytes, a uint8 array (HW gray, HWC RGB or RGBA), a PIL image.
        detector: what finds text: a file, or an object; by default the weights that inkmill carries.
        reader: what reads lines, likewise.
        options: `threads`, `min_confidence`, `find_rotation` of `inkmill.pages.PageReader`, which also reads page by
            page, for long documents.

    Raises:
        DataError: a page cannot be read; names it.
        InkmillError: no model, or one of another kind.
    """
    return list(_page_reader(detector, reader, **options).read(sources))


@lru_cache(maxsize=2)
def _page_reader(detector: Any, reader: Any, **options: Any) -> PageReader:
    from inkmill.pages import PageReader

    return PageReader(detector, reader, **options)


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
