"""`inkmill prune`."""

from __future__ import annotations

from typing import Annotated

from inkmill.cli.options import SpecFile, arguments, load, make_console, split_model
from inkmill.errors import ConfigError


def prune(
    given: Annotated[
        list[str] | None, arguments("MODEL | FILE.safetensors | ", "The model, then the file to write.")
    ] = None,
    spec: SpecFile = None,
) -> None:
    """Take channels out of a reader; what is left is smaller and faster, and to be retrained.

    Prints parameters, multiply-accumulates and images a second before and after, and the accuracy where evaluate.test
    names a test set. Retrain with train.pretrained_model_path=FILE.
    """
    from inkmill.config.load import require

    model, files, overrides = split_model(given)
    if len(files) > 1:
        raise ConfigError(f"prune takes a model and the file to write, not {files[1]!r} too")
    loaded = load(spec, overrides, prune__checkpoint=model, prune__pruned_file=files[0] if files else None)
    require(loaded, "prune.checkpoint", "prune")

    from inkmill.deploy.prune.run import prune as run

    run(loaded, console=make_console())
