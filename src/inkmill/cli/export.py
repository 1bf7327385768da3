"""`inkmill export`."""

from __future__ import annotations

from typing import Annotated

from inkmill.cli.options import SpecFile, arguments, load, make_console, split_model
from inkmill.errors import ConfigError


def export(
    given: Annotated[list[str] | None, arguments("MODEL | FILE.onnx | ", "The model, then the file to write.")] = None,
    spec: SpecFile = None,
) -> None:
    """Write a reader as one ONNX file, which reads without torch.

    The file is written only if it reads what torch reads.
    """
    from inkmill.config.load import require

    model, files, overrides = split_model(given)
    if len(files) > 1:
        raise ConfigError(f"export takes a model and a file to write; for {files[1]}, give evaluate.test={files[1]}")
    loaded = load(spec, overrides, export__checkpoint=model, export__onnx_file=files[0] if files else None)
    require(loaded, "export.checkpoint", "export")

    from inkmill.deploy.export.run import export as run

    run(loaded, console=make_console())
