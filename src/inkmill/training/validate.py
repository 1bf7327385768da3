"""Scores of a model on validation loaders, the same on one GPU and on many."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from inkmill.data.loaders.device import DeviceLoader
from inkmill.runtime.torch_reader import Autocast, read_with_loss
from inkmill.tasks.recognition.codecs import Codec
from inkmill.tasks.recognition.metrics import RecognitionScores, score
from inkmill.tasks.recognition.model import Recognizer
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.timings import Timings


@dataclass
class Validation:
    """What a validation found.

    Attributes:
        loss: mean loss an image over all sets.
        word_accuracy: share of the images read wholly right, over all sets, 0..1.
        cer: character error rate over all sets.
        sets: scores of each set.
        examples: a few (key, truth, text, confidence) of the first set.
    """

    loss: float
    word_accuracy: float
    cer: float
    sets: dict[str, RecognitionScores]
    examples: list[tuple[str, str, str, float]] = field(default_factory=list)

    def rank(self) -> tuple[float, float, float]:
        """Return what makes one validation better than another: word accuracy, fewer character errors, lower loss.

        The loss decides on small sets, where many epochs read everything right and the later ones do so more surely.
        """
        return self.word_accuracy, -self.cer, -self.loss


Row = tuple[str, str, str, float]


def validate(
    model: Recognizer,
    loaders: dict[str, DeviceLoader],
    codec: Codec,
    normaliser: Normaliser,
    autocast: Autocast = nullcontext,
    timings: Timings | None = None,
) -> Validation:
    """Read every set and score it.

    Args:
        model: read in evaluation mode; its mode is put back.
        loaders: by set name; with several ranks each rank's loader gives its own slice.
        codec: between texts and ids.
        normaliser: what is applied to the labels.
        autocast: the precision's context.
        phases: gets the seconds; several validations may share one.
    """
    was_training, timings = model.training, timings or Timings()
    model.eval()
    rows_by_set: dict[str, list[Row]] = {}
    loss_sum, images = 0.0, 0
    for name, loader in loaders.items():
        rows: list[Row] = []
        reading = read_with_loss(model, loader, codec, normaliser, autocast, timings)
        for batch, truths, texts, confidences, loss in reading:
            rows += zip(batch.keys, truths, texts, confidences.tolist(), strict=True)
            loss_sum += loss * len(batch)
            images += len(batch)
        rows_by_set[name] = _from_all_ranks(rows, timings)
    model.train(was_training)
    loss_sum, images = _summed(loss_sum, images, timings)
    everything = [row for rows in rows_by_set.values() for row in rows]
    total = score([row[1] for row in everything], [row[2] for row in everything])
    sets = {name: score([r[1] for r in rows], [r[2] for r in rows]) for name, rows in rows_by_set.items()}
    timings.lap("metric")
    return Validation(loss_sum / max(1, images), total.word_accuracy, total.cer or 0.0, sets, everything[:5])


def _from_all_ranks(rows: list[Row], timings: Timings) -> list[Row]:
    if not (dist.is_available() and dist.is_initialized()):
        return rows
    gathered: list[list[Row]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, rows)
    timings.lap("ranks")
    return [row for part in gathered for row in part]


def _summed(loss_sum: float, images: int, timings: Timings) -> tuple[float, int]:
    if not (dist.is_available() and dist.is_initialized()):
        return loss_sum, images
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    both = torch.tensor([loss_sum, images], dtype=torch.float64, device=device)
    dist.all_reduce(both)
    found = float(both[0]), int(both[1])
    timings.lap("ranks")
    return found
