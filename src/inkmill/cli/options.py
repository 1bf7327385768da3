"""What the verbs share: the spec option, the free arguments, and the way from both to a Spec.

Nothing heavy is imported at the top of any file of this package, so that `inkmill --help` is instant.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inkmill.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from inkmill.config.spec import Spec

# Control characters but TAB and line feed, and those that turn the direction of what follows.
_HIDDEN = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]")
MODEL_SUFFIXES = (".safetensors", ".pth", ".onnx")

# TAO's keys for the same: sets that are given by position stand in place of those of the spec, however it spells them.
_INSTEAD_OF: dict[str, tuple[tuple[str, Any], ...]] = {
    "dataset.train": (("dataset.train_dataset_dir", []), ("dataset.train_gt_file", None)),
    "dataset_convert.input_img_dir": (("dataset_convert.gt_file", None), ("dataset_convert.format", "auto")),
    "evaluate.test": (("evaluate.test_dataset_dir", None), ("evaluate.test_dataset_gt_file", None)),
}

SpecFile = Annotated[
    list[str] | None,
    typer.Option(
        "-e",
        "--spec",
        metavar="FILE|PRESET",
        help="Spec file, or a preset (captcha, detection, line, scene, tao); twice: preset, then file.",
    ),
]


def arguments(metavar: str, meaning: str) -> Any:
    """Return typer's declaration of the free arguments of a verb: its own, then KEY=VALUE changes to the spec."""
    help_text = f"{meaning} KEY=VALUE changes a key of the spec: train.num_epochs=20."
    return typer.Argument(metavar=f"{metavar}KEY=VALUE", help=help_text.strip(), show_default=False)


def split(given: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the positional arguments and the overrides of a command line."""
    from inkmill.config.load import split_arguments

    return split_arguments(given or [])


def split_model(given: Sequence[str] | None) -> tuple[str | None, list[str], list[str]]:
    """Return the model file, where the first argument is one, the other positional arguments, and the overrides."""
    positional, overrides = split(given)
    if positional and positional[0].endswith(MODEL_SUFFIXES):
        return positional[0], positional[1:], overrides
    return None, positional, overrides


def load(spec: Sequence[str] | None, overrides: Sequence[str], **positional: Any) -> Spec:
    """Return the Spec of a command line.

    Args:
        spec: what follows each -e: a file or a preset, or a preset and then a file on top of it.
        overrides: the KEY=VALUE arguments.
        positional: values of keys given by position, with `__` for the dot; those that are None or empty are left out.
    """
    from inkmill.config.load import load_spec, preset_names

    given: list[tuple[str, Any]] = []
    for name, value in positional.items():
        key = name.replace("__", ".")
        given += [(key, value), *_INSTEAD_OF.get(key, ())] if value else []
    match list(spec or []):
        case []:
            return load_spec(None, [*given, *overrides])
        case [file]:
            return load_spec(file, [*given, *overrides])
        case [preset, file] if preset in preset_names():
            return load_spec(file, [*given, *overrides], preset=preset)
        case many:
            raise ConfigError(f"-e {' -e '.join(many)}: expected a file or a preset, or a preset and then a file")


def visible(text: str) -> str:
    """Return a text as it may go to a terminal: what would move its cursor, recolour or turn it is spelled out.

    Names of files, labels and keys come from data that nobody has looked at; an escape sequence in one could rewrite
    what the terminal shows.
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def make_console(error: bool = False) -> Console:
    """Return the console of the standard output, or error; where that is a file, lines are not cut at 80 columns."""
    from rich.console import Console
    from rich.text import Text

    class VisibleConsole(Console):
        """Shows every text by `visible`."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

    if error:
        return VisibleConsole(stderr=True)
    return VisibleConsole() if sys.stdout.isatty() else VisibleConsole(width=160)
