"""`export`: a reader as one ONNX file that carries its card, and that reads what torch reads or is not written at all.

Inputs and outputs are TAO OCRNet's, or PaddleOCR's (see docs/export.md). The card is in the metadata (key `inkmill`),
the characters also one a line (key `character`), where other readers look for them, and in a text file beside it. The
file ends with a seal over its bytes (see inkmill.modelfile.onnx_file), and is encrypted where there is a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from inkmill.config.load import require
from inkmill.config.results import open_results
from inkmill.config.spec import Spec
from inkmill.crypt import find_key, told
from inkmill.deploy.export.graph import OPSET, record
from inkmill.deploy.export.paddle import RAPIDOCR_HEIGHT, refuse_unfit, resized_twice
from inkmill.deploy.export.parity import HALF_SHARE, INT8_SHARE, TOLERANCE, Parity, compare
from inkmill.deploy.outputs import mebibytes, output_path, print_line, with_step, write_companions
from inkmill.deploy.samples import CROPS, VerificationSet, verification_samples
from inkmill.errors import ConfigError, InkmillError
from inkmill.files import atomic_path, write_json_atomic
from inkmill.modelfile.model_card import with_speeds
from inkmill.runtime.onnx import write_and_open
from inkmill.runtime.speed import images_per_second, medians
from inkmill.runtime.torch_reader import TorchReader

_REQUIRED = {
    "fp32": {"string_parity": 1.0, "max_difference": TOLERANCE},
    "fp16": {"string_parity": HALF_SHARE},
    "int8": {"string_parity": INT8_SHARE},
}
_ADVICE = {
    "fp32": "please report this model",
    "fp16": "export it with export.precision=fp32",
    "int8": "train it longer, for it is unsure of these images, or report it",
}


def export(spec: Spec, *, console: Console | None = None, crops: int = CROPS) -> Path:
    """Write `export.onnx_file` and the figures (metrics.json), and return the file's path.

    Args:
        spec: `export.checkpoint` is needed; the file's name is the checkpoint's with .onnx unless onnx_file is given,
            in export.results_dir where that is given, else beside the checkpoint.
            The sets that it names give the images that torch and the file both read.
        console: where one line goes.
        crops: how many images both read, at most.

    Raises:
        ConfigError: a reader that the profile is not for, or a backbone that cannot have a free width.
        InkmillError: the file would read something else than torch; it is not written, the figures are.
    """
    console = console or Console(quiet=True)
    settings, key = spec.export, find_key(spec.encryption_key)
    checkpoint = Path(require(spec, "export.checkpoint", "export"))
    path = _output_path(spec, checkpoint)
    with open_results(spec, "export") as results:
        if line := told(key):
            print_line(console, line)
        # 1. The model, and what it is verified on.
        reader = TorchReader.load(checkpoint, "cpu", key)
        outputs = _outputs(reader, spec, checkpoint)
        precision = _precision(reader, spec, checkpoint)
        samples = verification_samples(spec, reader.header, crops)
        parameters = reader.model.reading_parameters()
        facts = {"profile": settings.profile, "precision": precision}
        header = with_step(reader.header, "export", checkpoint, forget=(), **facts)
        header = header.model_copy(update={"provenance": {**header.provenance, "parameters": parameters}})

        # 2. The graph.
        graph = record(
            reader.model,
            outputs,
            profile=settings.profile,
            half=settings.precision == "fp16",
            resize=reader.resize,
        )

        # 3. Into a temporary file, which takes its place only if it reads what torch reads.
        with atomic_path(path) as temporary:
            exported = write_and_open(graph, header, temporary, key)
            parity = compare(reader, exported, samples)
            write_json_atomic(results.folder / "metrics.json", _figures(spec, path, parity, samples, precision))
            _refuse_difference(parity, precision, checkpoint, samples)

            # 4. Its speed goes into the header, so the file is written once more.
            (speeds,) = images_per_second([exported], np.stack(samples.images[:1]), rounds=1)
            header = with_speeds(header, exported.runs_on, medians(speeds))
            write_and_open(graph, header, temporary, key)
        write_companions(path, header)
        print_line(console, _summary(path, parity, samples))
        if settings.profile == "paddle" and header.model.input_height != RAPIDOCR_HEIGHT:
            print_line(console, resized_twice(header.model.input_height))
    return path


def _output_path(spec: Spec, checkpoint: Path) -> Path:
    if checkpoint.suffix == ".onnx":
        raise ConfigError(f"{checkpoint} is exported already; give the .safetensors or .pth file that it was made from")
    default = checkpoint.with_suffix(".onnx").name
    wanted = spec.export.onnx_file
    if not wanted and spec.export.results_dir:  # named for this verb alone: there the file is looked for
        wanted = str(Path(spec.export.results_dir) / default)
    return output_path("export.onnx_file", wanted, checkpoint, default, (".onnx",))


def _outputs(reader: TorchReader, spec: Spec, checkpoint: Path) -> tuple[str, ...]:
    """Return the task's outputs that the graph is to give."""
    task, profile = reader.task, spec.export.profile
    if profile != "default":
        if profile not in task.profiles:
            raise ConfigError(f"{checkpoint}: export.profile={profile} is not for a {task.noun}")
        refuse_unfit(reader.header, str(checkpoint))
        return tuple(task.profiles[profile].outputs.values())
    return tuple(name for name, output in task.outputs.items() if spec.export.probabilities or not output.optional)


def _precision(reader: TorchReader, spec: Spec, checkpoint: Path) -> str:
    """Return fp32, fp16, or int8 for a reader that was trained for it."""
    if not reader.header.model.quantize:
        return spec.export.precision
    if spec.export.precision == "fp16":
        raise ConfigError(f"{checkpoint} was trained for int8: export it without export.precision=fp16")
    return "int8"


def _figures(spec: Spec, path: Path, parity: Parity, samples: VerificationSet, precision: str) -> dict[str, Any]:
    import onnxruntime

    return {
        "onnx_file": str(path),
        "checkpoint": spec.export.checkpoint,
        "profile": spec.export.profile,
        "precision": precision,
        **parity.as_dict(),
        "required": _REQUIRED[precision],
        "pictures": samples.origin,
        "unreadable": samples.unreadable,
        "widths": samples.widths,
        "opset": OPSET,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _refuse_difference(parity: Parity, precision: str, checkpoint: Path, samples: VerificationSet) -> None:
    if parity.holds(precision):
        return
    own = "give evaluate.test=PATH, images that the reader is for, or " if samples.rendered else ""
    ties = f", {parity.ties:,} differ at a tie of two classes" if parity.ties else ""
    raise InkmillError(
        f"{checkpoint}: the exported graph does not read what torch reads ({parity.equal:,} of {parity.crops:,} "
        f"texts are equal{ties}, probabilities differ by up to {parity.difference:.3f}); no model was written, "
        f"{own}{_ADVICE[precision]}"
    )


def _summary(path: Path, parity: Parity, samples: VerificationSet) -> str:
    lost = f" ({samples.unreadable:,} could not be decoded)" if samples.unreadable else ""
    return (
        f"{path}: {mebibytes(path)}; of {parity.crops:,} images of {len(samples.widths)} widths{lost} it reads "
        f"{parity.equal:,} as torch does, probabilities within {parity.difference:.0e} ({samples.origin})"
    )
