"""`inkmill engine`."""

from __future__ import annotations

from typing import Annotated

from inkmill.cli.options import SpecFile, arguments, load, make_console, split_model
from inkmill.errors import ConfigError


def engine(
    given: Annotated[
        list[str] | None, arguments("MODEL | FILE.engine | ", "The reader, then the file to write.")
    ] = None,
    spec: SpecFile = None,
) -> None:
    """Compile a reader with TensorRT for the GPU of this machine.

    In fp32, fp16 or int8 (gen_trt_engine.tensorrt.data_type). It needs NVIDIA's TensorRT.
    """
    from inkmill.config.load import require

    model, files, overrides = split_model(given)
    if len(files) > 1:
        raise ConfigError(f"engine takes a model and the file to write, not {files[1]!r} too")
    loaded = load(
        spec, overrides, gen_trt_engine__onnx_file=model, gen_trt_engine__trt_engine=files[0] if files else None
    )
    require(loaded, "gen_trt_engine.onnx_file", "engine")

    from inkmill.cli.progress import progress_bar
    from inkmill.deploy.tensorrt.build import build_engine

    console = make_console()
    with progress_bar(console, "TensorRT") as move:
        build_engine(loaded, console=console, progress=move)
