"""Watches the loss without making the GPU wait.

Losses stay on the device. Every few batches they are asked for, and judged a batch later: by then the GPU has a whole
step to go on with while the host waits for them. Judged at once, the GPU would run dry until its queue is filled again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from inkmill.errors import TrainingError
from inkmill.runtime.torch_reader import AsyncHostCopy
from inkmill.training.ranks import all_reduce_sum

NAMED = 8
"""How many keys of a bad batch the error names."""


class LossWatch:
    """Keeps the losses of recent batches with the keys of their samples.

    Args:
        every: batches between two looks; 1 looks at each at once (free on a CPU).
        fabric: launched, where there may be several ranks.
    """

    def __init__(self, every: int, fabric: Fabric | None = None) -> None:
        self.every = every
        self._several = fabric if fabric is not None and fabric.world_size > 1 else None
        self._waiting: list[tuple[Tensor, int, list[str]]] = []
        self._asked: tuple[AsyncHostCopy, list[tuple[int, list[str]]]] | None = None
        self._added = 0
        self._sum, self._count = 0.0, 0
        self._recent = math.nan
        self._mean = math.nan

    def add(self, loss: Tensor, images: int, keys: list[str]) -> None:
        """Take note of the loss of one batch.

        Raises:
            TrainingError: a loss that was asked for was NaN or infinite.
        """
        self._waiting.append((loss, images, keys))
        self._added += 1
        if self.every == 1:
            self.check()
        elif self._asked is not None:
            self._judge()
        elif self._added % self.every == self.every - 1:  # so that the mean is known where a step is logged
            self._ask()

    def check(self) -> None:
        """Look at the losses now.

        Raises:
            TrainingError: a loss since the last look was NaN or infinite; names the first such batch's samples.
        """
        self._judge()
        self._ask()
        self._judge()

    def forget(self) -> None:
        """Let go of the losses that nobody has looked at."""
        self._waiting.clear()

    def _ask(self) -> None:
        """Have the losses that wait copied, and go on."""
        if self._waiting:
            fetched = AsyncHostCopy(torch.stack([loss for loss, _, _ in self._waiting]).double())
            self._asked = fetched, [(images, keys) for _, images, keys in self._waiting]
            self._waiting = []

    def _judge(self) -> None:
        """Look at the losses that were asked for."""
        if self._asked is None:
            return
        (fetched, batches), self._asked = self._asked, None
        losses: list[float] = fetched.take()[0].tolist()
        for loss, (_, keys) in zip(losses, batches, strict=True):
            if not math.isfinite(loss):
                more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
                raise TrainingError(
                    f"the loss became {loss} on the batch of {', '.join(keys[:NAMED])}{more}; "
                    "look at these samples, lower train.optim.lr or use train.precision=fp32 "
                    "(the last checkpoint is from before this batch)"
                )
        images = sum(count for count, _ in batches)
        total = sum(loss * count for loss, (count, _) in zip(losses, batches, strict=True))
        self._recent = total / max(1, images)
        self._sum, self._count = self._sum + total, self._count + images

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
        elsewhere = self._several is not None and all_reduce_sum(self._several, [float(bad is not None)])[0] > 0
        if bad is not None:
            raise bad
        if elsewhere:  # no error of ours, so that the other rank's sentence is the one that is told
            raise RuntimeError("the loss of another rank is no number any more")

    def add_up(self) -> None:
        """Make the sums of the epoch those of all ranks, each of which calls this; the first keeps them, no other."""
        if self._several is not None:
            total, count = all_reduce_sum(self._several, [self._sum, float(self._count)])
            self._sum, self._count = (total, int(count)) if self._several.is_global_zero else (0.0, 0)

    def epoch_mean(self) -> float:
        """Return the mean loss an image since the last call that had news, and start from scratch."""
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
