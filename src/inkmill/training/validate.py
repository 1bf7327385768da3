"""Scores of a model on validation loaders, the same on one GPU and on many."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from inkmill.data.loaders.device import DeviceLoader
from inkmill.runtime.torch_reader import ForwardPass, predict_batches
from inkmill.tasks.base import Prediction, Scores, Task, Truth
from inkmill.tasks.model import TaskModel
from inkmill.timings import Timings

Row = tuple[str, Truth, Prediction]
"""Key, truth and prediction of one image."""

EXAMPLES = 3


@dataclass
class Validation:
    """What a validation found.

    Attributes:
        loss: mean loss an image over all sets.
        scores: over all sets together.
        sets: scores of each set.
        examples: the first few answers, a line each.
    """

    loss: float
    scores: Scores
    sets: dict[str, Scores]
    examples: list[str] = field(default_factory=list)

    def rank(self) -> tuple[float, ...]:
        """Return what makes one validation better than another: the task's scores, then a lower loss.

        The loss decides on small sets, where many epochs read everything right and the later ones do so more surely.
        """
        return *self.scores.rank(), -self.loss


def validate(
    model: TaskModel,
    loaders: dict[str, DeviceLoader],
    task: Task,
    forward: ForwardPass | None = None,
    timings: Timings | None = None,
) -> Validation:
    """Read every set and score it.

    Args:
        model: run in evaluation mode; its mode is put back.
        loaders: by set name; with several ranks each rank's loader gives its own slice.
        task: what is read.
        forward: see `predict_batches`; with the loss.
        timings: gets the seconds; several validations may share one.
    """
    was_training, timings = model.training, timings or Timings()
    model.eval()
    decoder = task.plain_decoder()
    rows_by_set: dict[str, list[Row]] = {}
    loss_sum, images = 0.0, 0
    # 1. Read this rank's slice of each set, and gather those of all ranks.
    for name, loader in loaders.items():
        rows: list[Row] = []
        found = predict_batches(model, task, decoder, loader, with_loss=True, forward=forward, timings=timings)
        for batch, predictions, truths, loss in found:
            rows += zip(batch.keys, truths or [], predictions, strict=True)
            loss_sum += loss * len(batch)
            images += len(batch)
        rows_by_set[name] = _from_all_ranks(rows, timings)
    model.train(was_training)
    loss_sum, images = _summed(loss_sum, images, timings)
    # 2. Score, the same on every rank.
    everything = [row for rows in rows_by_set.values() for row in rows]
    sets = {name: _score(task, rows) for name, rows in rows_by_set.items()}
    total = _score(task, everything)
    timings.lap("metric")
    return Validation(loss_sum / max(1, images), total, sets, [_example(task, *row) for row in everything[:EXAMPLES]])


def _example(task: Task, key: str, truth: Truth, prediction: Prediction) -> str:
    verdict = "right" if task.error(truth, prediction) is None else "wrong"
    return f"{key}: {task.compare(truth, prediction)}, {verdict}".replace("\n", " ")


def _score(task: Task, rows: list[Row]) -> Scores:
    return task.score([truth for _, truth, _ in rows], [prediction for _, _, prediction in rows])


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
