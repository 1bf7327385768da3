"""`export`: a reader as one ONNX file that carries its card, and that reads what torch reads or is not written at all.

Input and outputs are TAO OCRNet's: `input` float32 (batch, C, H, W) in [-1, 1]; `output_id` int32 and `output_prob`
float32, (batch, S), the best class of each step and its probability. The card is in the metadata (key `inkmill`), the
characters also one a line (key `character`), where other readers look for them. The file ends with a seal over its
bytes (see inkmill.runtime.onnx_file), and is encrypted where there is a key.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from inkmill.config.load import require
from inkmill.config.spec import Spec
from inkmill.crypt import find_key, sealed
from inkmill.errors import ConfigError, InkmillError, MissingExtraError
from inkmill.files import atomic_path
from inkmill.models.recognizer import Recognizer
from inkmill.runtime.card import ReaderCard
from inkmill.runtime.model_card import step, write_model_card
from inkmill.runtime.onnx import OnnxReader
from inkmill.runtime.onnx_file import seal
from inkmill.training.reading import TorchReader

OPSET = 18
TRIED = 33
"""Pictures on which both must read the same; two batches, of which neither has the size the graph was recorded with."""
TOLERANCE = 1e-3
"""Largest difference of a probability."""


def export(spec: Spec, *, console: Console | None = None) -> Path:
    """Write `export.onnx_file` and return its path.

    Args:
        spec: `export.checkpoint` is needed; the file's name is the checkpoint's with .onnx unless onnx_file is given.
        console: where one line goes.

    Raises:
        ConfigError: a free input width, which ONNX files do not have here yet.
        InkmillError: the file would read something else than torch; nothing is written.
    """
    checkpoint = Path(require(spec, "export.checkpoint", "export"))
    path = Path(spec.export.onnx_file) if spec.export.onnx_file else checkpoint.with_suffix(".onnx")
    key = find_key(spec.encryption_key)
    reader = TorchReader.load(checkpoint, "cpu", key)
    if reader.card.model.input_fit == "height":
        raise ConfigError(f"{checkpoint}: its input width is free; export needs a reader with input_fit stretch or pad")
    card = _card(reader, checkpoint)
    with atomic_path(path) as temporary:
        recorded = _record(reader.model, card, spec.export.probabilities)
        temporary.write_bytes(sealed(seal(recorded), key))
        worst = _compare(reader, OnnxReader(temporary, "cpu", encryption_key=key), checkpoint)
    write_model_card(path, card)
    if console is not None:
        console.print(
            f"{path}: {path.stat().st_size / 2**20:.1f} MiB; on {TRIED} pictures it reads what torch reads, "
            f"probabilities within {worst:.0e}",
            highlight=False,
        )
    return path


def _card(reader: TorchReader, checkpoint: Path) -> ReaderCard:
    """Return the reader's card with this step in its history."""
    told = reader.card.provenance
    made = [*told.get("made", []), step("export", source=checkpoint.name)]
    parameters = sum(parameter.numel() for parameter in reader.model.parameters())
    return reader.card.model_copy(update={"provenance": {**told, "made": made, "parameters": parameters}})


class _Reads(nn.Module):
    def __init__(self, model: Recognizer, probabilities: bool) -> None:
        super().__init__()
        self.model, self.probabilities = model, probabilities

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        scores = self.model(images)
        best: tuple[Tensor, ...] = self.model.head.read(scores)
        return (*best, scores.float().softmax(dim=2)) if self.probabilities else best


def _record(model: Recognizer, card: ReaderCard, probabilities: bool) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it, and says so less clearly
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "onnx", "train", "export") from error
    settings = card.model
    example = torch.zeros(2, settings.input_channel, settings.input_height, settings.input_width)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program = torch.onnx.export(
            _Reads(model, probabilities).eval(),
            (example,),
            input_names=["input"],
            output_names=["output_id", "output_prob", *(["probabilities"] if probabilities else [])],
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1, max=65536)}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise InkmillError("torch's exporter gave no program for this model")
    recorded = program.model_proto
    for key, value in (("inkmill", card.to_json()), ("character", "\n".join(card.charset))):
        entry = recorded.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(recorded)
    content: bytes = recorded.SerializeToString()
    return content


def _compare(ours: TorchReader, exported: OnnxReader, checkpoint: Path) -> float:
    """Return the largest difference of a probability; raises where a text differs."""
    settings = ours.card.model
    random = np.random.default_rng(0)
    shape = (TRIED, settings.input_height, settings.input_width, settings.input_channel)
    # Blocks of flat shade with grain: closer to ink on paper than noise, which every network calls blank.
    blocks = random.integers(0, 256, (TRIED, 4, 12, settings.input_channel)).astype(np.uint8)
    rows = np.arange(settings.input_height) * 4 // settings.input_height
    columns = np.arange(settings.input_width) * 12 // settings.input_width
    images = blocks[:, rows][:, :, columns] // 2 + random.integers(0, 128, shape).astype(np.uint8)
    worst = 0.0
    for batch in (images[:1], images[1:]):
        ids, probabilities = ours.classify(batch)
        other_ids, other_probabilities = _asked(exported, batch, checkpoint)
        worst = max(worst, float(np.abs(probabilities - other_probabilities).max()))
        texts, _ = ours.codec.decode(ids, probabilities)
        other_texts, _ = ours.codec.decode(other_ids, other_probabilities)
        if texts != other_texts or worst > TOLERANCE:
            raise InkmillError(
                f"{checkpoint}: the exported graph does not read what torch reads (probabilities differ by up to "
                f"{worst:.3f}); nothing was written, please report this model"
            )
    return worst


def _asked(exported: OnnxReader, batch: NDArray[np.uint8], checkpoint: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        return exported.classify(batch)
    except Exception as error:  # onnxruntime's errors share no public base
        raise InkmillError(
            f"{checkpoint}: the exported graph cannot be run ({str(error).splitlines()[0]}); "
            "nothing was written, please report this model"
        ) from error
