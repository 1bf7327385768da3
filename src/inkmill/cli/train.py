"""`inkmill train`."""

from __future__ import annotations

from typing import Annotated

from inkmill.cli.options import SpecFile, arguments, load, make_console, split


def train(
    given: Annotated[list[str] | None, arguments("PATH | ", "Training sets, in any format `check` knows.")] = None,
    spec: SpecFile = None,
) -> None:
    """Train a reader; the same command again resumes.

    The result is results/train/best_accuracy.safetensors, one file that is enough to read.
    """
    paths, overrides = split(given)
    loaded = load(spec, overrides, dataset__train=paths)

    from inkmill.training.run import train as run

    run(loaded, console=make_console())
