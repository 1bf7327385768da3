"""`inkmill quantize`."""

from __future__ import annotations

from typing import Annotated

from inkmill.cli.options import SpecFile, arguments, load, make_console, split_model
from inkmill.errors import ConfigError


def quantize(
    given: Annotated[list[str] | None, arguments("MODEL | FILE.onnx | ", "The model, then the file to write.")] = None,
    spec: SpecFile = None,
) -> None:
    """Write a reader as an ONNX file that computes in int8: smaller, and faster on a CPU.

    Ranges are measured on dataset.train. Prints strings, accuracy, size and images a second before and after; layers
    stay in float until no more than quantize.max_drop is lost.
    """
    from inkmill.config.load import require

    model, files, overrides = split_model(given)
    if len(files) > 1:
        raise ConfigError(f"quantize takes a model and the file to write, not {files[1]!r} too")
    loaded = load(spec, overrides, quantize__model_path=model, quantize__quantized_file=files[0] if files else None)
    require(loaded, "quantize.model_path", "quantize")

    from inkmill.deploy.quantize.run import quantize as run

    run(loaded, console=make_console())
