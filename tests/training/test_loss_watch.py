from __future__ import annotations

import math

import pytest
import torch

from inkmill.errors import TrainingError
from inkmill.training.loss_watch import LossWatch


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_loss_names_the_samples_of_its_own_batch(bad: float) -> None:
    watch = LossWatch(every=10)
    watch.add(torch.tensor(1.0), 2, ["a.png", "b.png"])
    watch.add(torch.tensor(bad), 2, ["c.png", "d.png"])
    watch.add(torch.tensor(1.0), 2, ["e.png", "f.png"])
    with pytest.raises(TrainingError, match=r"c\.png, d\.png;"):
        watch.check()


def test_means_count_images_not_batches_and_survive_a_resume() -> None:
    watch = LossWatch(every=1)
    watch.add(torch.tensor(1.0), 3, ["a"] * 3)
    resumed = LossWatch(every=1)
    resumed.load_state_dict(watch.state_dict())
    resumed.add(torch.tensor(5.0), 1, ["b"])
    assert resumed.epoch_mean() == pytest.approx(2.0)


def test_the_mean_of_an_epoch_is_that_of_all_ranks_and_kept_by_one() -> None:
    ranks = [LossWatch(every=1), LossWatch(every=1)]
    for watch, loss, images in zip(ranks, (1.0, 4.0), (2, 1), strict=True):
        watch.add(torch.tensor(loss), images, ["x"] * images)
    sums = torch.tensor([[watch.state_dict()[name] for name in ("sum", "count")] for watch in ranks]).sum(0)
    for rank, watch in enumerate(ranks):
        watch.add_up(lambda mine: sums.double(), keeps=rank == 0)
    assert ranks[0].epoch_mean() == 2.0
    assert math.isnan(ranks[1].epoch_mean())
