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
from inkmill.crypt import find_key
from inkmill.deploy.export.graph import OPSET, record
from inkmill.deploy.export.paddle import THEIR_HEIGHT, refuse_unfit, resized_twice
from inkmill.deploy.export.parity import HALF_SHARE, INT8_SHARE, TOLERANCE, Parity, compare
from inkmill.deploy.export.pictures import CROPS, Pictures, choose_pictures
from inkmill.errors import ConfigError, InkmillError
from inkmill.files import atomic_path, write_json_atomic, write_text_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step, with_speeds, write_model_card
from inkmill.modelfile.onnx_writer import written
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
    "int8": "train it longer, for it is unsure of these pictures, or report it",
}


def export(spec: Spec, *, console: Console | None = None, crops: int = CROPS) -> Path:
    """Write `export.onnx_file` and the figures (metrics.json), and return the file's path.

    Args:
        spec: `export.checkpoint` is needed; the file's name is the checkpoint's with .onnx unless onnx_file is given.
            The sets that it names give the pictures on which both read.
        console: where one line goes.
        crops: how many pictures both read, at most.

    Raises:
        ConfigError: a reader that the profile is not for, or a backbone that cannot have a free width.
        InkmillError: the file would read something else than torch; it is not written, the figures are.
    """
    checkpoint = Path(require(spec, "export.checkpoint", "export"))
    path = _place(spec, checkpoint)
    key = find_key(spec.encryption_key)
    with open_results(spec, "export") as results:
        reader = TorchReader.load(checkpoint, "cpu", key)
        if spec.export.profile == "paddle":
            refuse_unfit(reader.card, str(checkpoint))
        precision = _precision(reader, spec, checkpoint)
        pictures = choose_pictures(spec, reader.card, crops)
        card = _card(reader, checkpoint, spec, precision)
        graph = _graph(reader, spec)
        with atomic_path(path) as temporary:
            exported = written(graph, card, temporary, key)
            parity = compare(reader, exported, pictures)
            write_json_atomic(results.folder / "metrics.json", _figures(spec, path, parity, pictures, precision))
            _refuse_unlike(parity, precision, checkpoint, pictures)
            (speeds,) = images_per_second([exported], np.stack(pictures.images[:1]), rounds=1)
            card = with_speeds(card, exported.runs_on, medians(speeds))
            written(graph, card, temporary, key)
        write_model_card(path, card)
        write_text_atomic(path.with_name(f"{path.name}.characters.txt"), "\n".join(card.charset) + "\n")
        if console is not None:
            console.print(_told(path, parity, pictures), highlight=False, markup=False)
            if spec.export.profile == "paddle" and card.model.input_height != THEIR_HEIGHT:
                console.print(resized_twice(card.model.input_height), highlight=False, markup=False)
    return path


def _place(spec: Spec, checkpoint: Path) -> Path:
    path = Path(spec.export.onnx_file) if spec.export.onnx_file else checkpoint.with_suffix(".onnx")
    if checkpoint.suffix == ".onnx":
        raise ConfigError(f"{checkpoint} is exported already; give the .safetensors or .pth file that it was made from")
    if path.suffix != ".onnx":  # other names are not taken for models by the other verbs
        raise ConfigError(f"export.onnx_file={path}: expected a name that ends in .onnx")
    return path


def _precision(reader: TorchReader, spec: Spec, checkpoint: Path) -> str:
    """Return fp32, fp16, or int8 for a reader that was trained for it."""
    if not reader.card.model.quantize:
        return spec.export.precision
    if spec.export.precision == "fp16":
        raise ConfigError(f"{checkpoint} was trained for int8: export it without export.precision=fp16")
    return "int8"


def _card(reader: TorchReader, checkpoint: Path, spec: Spec, precision: str) -> ModelHeader:
    """Return the reader's card with this step in its history."""
    told = reader.card.provenance
    entry = step("export", source=checkpoint.name, profile=spec.export.profile, precision=precision)
    parameters = sum(parameter.numel() for parameter in reader.model.parameters())
    made = [*reader.card.history(), entry]
    return reader.card.model_copy(update={"provenance": {**told, "made": made, "parameters": parameters}})


def _graph(reader: TorchReader, spec: Spec) -> Any:
    settings = spec.export
    return record(
        reader.model,
        profile=settings.profile,
        probabilities=settings.probabilities,
        half=settings.precision == "fp16",
    )


def _figures(spec: Spec, path: Path, parity: Parity, pictures: Pictures, precision: str) -> dict[str, Any]:
    import onnxruntime

    return {
        "onnx_file": str(path),
        "checkpoint": spec.export.checkpoint,
        "profile": spec.export.profile,
        "precision": precision,
        **parity.as_dict(),
        "required": _REQUIRED[precision],
        "pictures": pictures.origin,
        "unreadable": pictures.unreadable,
        "widths": pictures.widths,
        "opset": OPSET,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _refuse_unlike(parity: Parity, precision: str, checkpoint: Path, pictures: Pictures) -> None:
    if not parity.holds(precision):
        own = "" if not pictures.rendered else "give evaluate.test=PATH, pictures that the reader is for, or "
        ties = f", {parity.ties:,} differ at a tie of two classes" if parity.ties else ""
        raise InkmillError(
            f"{checkpoint}: the exported graph does not read what torch reads ({parity.equal:,} of {parity.crops:,} "
            f"texts are equal{ties}, probabilities differ by up to {parity.difference:.3f}); no model was written, "
            f"{own}{_ADVICE[precision]}"
        )


def _told(path: Path, parity: Parity, pictures: Pictures) -> str:
    lost = f" ({pictures.unreadable:,} could not be decoded)" if pictures.unreadable else ""
    return (
        f"{path}: {path.stat().st_size / 2**20:.1f} MiB; of {parity.crops:,} pictures of {len(pictures.widths)} widths"
        f"{lost} it reads {parity.equal:,} as torch does, probabilities within {parity.difference:.0e} "
        f"({pictures.origin})"
    )
