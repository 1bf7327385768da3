"""Watches the loss without making the GPU wait: losses stay on the device and are looked at every few batches."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from inkmill.errors import TrainingError
from inkmill.training.ranks import added_up

NAMED = 8
"""How many keys of a bad batch the error names."""


class LossWatch:
    """Keeps the losses of recent batches with the keys of their samples.

    Args:
        every: batches between two looks; 1 looks at once (free on a CPU).
        fabric: launched, where there may be several ranks.
    """

    def __init__(self, every: int, fabric: Fabric | None = None) -> None:
        self.every = every
        self._several = fabric if fabric is not None and fabric.world_size > 1 else None
        self._waiting: list[tuple[Tensor, int, list[str]]] = []
        self._sum, self._count = 0.0, 0
        self._recent = math.nan
        self._mean = math.nan

    def add(self, loss: Tensor, images: int, keys: list[str]) -> None:
        """Take note of the loss of one batch.

        Raises:
            TrainingError: a loss since the last look was NaN or infinite.
        """
        self._waiting.append((loss, images, keys))
        if len(self._waiting) >= self.every:
            self.check()

    def check(self) -> None:
        """Look at the losses now.

        Raises:
            TrainingError: a loss since the last look was NaN or infinite; names the first such batch's samples.
        """
        if not self._waiting:
            return
        losses = torch.stack([loss for loss, _, _ in self._waiting]).double().cpu().tolist()
        for loss, (_, _, keys) in zip(losses, self._waiting, strict=True):
            if not math.isfinite(loss):
                more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
                raise TrainingError(
                    f"the loss became {loss} on the batch of {', '.join(keys[:NAMED])}{more}; "
                    "look at these samples, lower train.optim.lr or use train.precision=fp32 "
                    "(the last checkpoint is from before this batch)"
                )
        images = sum(n for _, n, _ in self._waiting)
        total = sum(loss * n for loss, (_, n, _) in zip(losses, self._waiting, strict=True))
        self._recent = total / max(1, images)
        self._sum, self._count = self._sum + total, self._count + images
        self._waiting.clear()

    def recent_mean(self) -> float:
        """Return the mean loss an image at the last look."""
        return self._recent

    def check_all(self) -> None:
        """Look at the losses of all ranks, each of which calls this.

        Raises:
            TrainingError: as `check`.
            RuntimeError: another rank's was NaN or infinite; that rank names the samples.
        """
        bad: TrainingError | None = None
        try:
            self.check()
        except TrainingError as error:
            bad = error
        elsewhere = self._several is not None and added_up(self._several, [float(bad is not None)])[0] > 0
        if bad is not None:
            raise bad
        if elsewhere:  # no error of ours, so that the other rank's sentence is the one that is told
            raise RuntimeError("the loss of another rank is no number any more")

    def add_up(self) -> None:
        """Make the sums of the epoch those of all ranks, each of which calls this; the first keeps them, no other."""
        if self._several is not None:
            total, count = added_up(self._several, [self._sum, float(self._count)])
            self._sum, self._count = (total, int(count)) if self._several.is_global_zero else (0.0, 0)

    def epoch_mean(self) -> float:
        """Return the mean loss an image since the last call that had news, and start anew."""
        if self._count:
            self._mean = self._sum / self._count
            self._sum, self._count = 0.0, 0
        return self._mean

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the epoch under way."""
        return {"sum": self._sum, "count": self._count, "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up saved sums."""
        self._sum, self._count, self._mean = state["sum"], state["count"], state["mean"]
