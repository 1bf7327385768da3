"""`inkmill evaluate`."""

from __future__ import annotations

from typing import Annotated

from inkmill.cli.options import SpecFile, arguments, load, make_console, split_model


def evaluate(
    given: Annotated[list[str] | None, arguments("MODEL | PATH | ", "The model, then the test sets.")] = None,
    spec: SpecFile = None,
) -> None:
    """Score a reader: word accuracy, CER and more, and every wrong reading.

    Leaves metrics.json, predictions.csv and errors.html in results/evaluate.
    """
    from inkmill.config.load import require

    model, paths, overrides = split_model(given)
    loaded = load(spec, overrides, evaluate__checkpoint=model, evaluate__test=paths)
    require(loaded, "evaluate.checkpoint", "evaluate")  # said before torch takes its seconds to load

    from inkmill.runtime.evaluate import evaluate as run

    run(loaded, console=make_console())
