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


def test_losses_are_judged_a_batch_after_they_were_asked_for() -> None:
    """So that whoever computes them has the next step to go on with; the mean is known where a step is logged."""
    watch, means = LossWatch(every=4), []
    for number in range(1, 9):
        watch.add(torch.tensor(float(number)), 1, [str(number)])
        means.append(watch.recent_mean())
    assert [mean for mean in means if not math.isnan(mean)] == [2.0] * 4 + [5.5]  # of batches 1 to 3, and 4 to 7
    watch.check()
    assert watch.recent_mean() == 8.0
    assert watch.epoch_mean() == 4.5


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("every", [1, 2, 3])
def test_no_bad_loss_is_missed(at: int, every: int) -> None:
    watch = LossWatch(every)
    with pytest.raises(TrainingError, match=f"the batch of {at};"):  # noqa: PT012
        for number in range(1, 9):
            watch.add(torch.tensor(math.nan if number == at else 1.0), 1, [str(number)])
            assert number < at + every + 1
        watch.check()


def test_means_count_images_not_batches_and_survive_a_resume() -> None:
    watch = LossWatch(every=1)
    watch.add(torch.tensor(1.0), 3, ["a"] * 3)
    resumed = LossWatch(every=1)
    resumed.load_state_dict(watch.state_dict())
    resumed.add(torch.tensor(5.0), 1, ["b"])
    assert resumed.epoch_mean() == pytest.approx(2.0)


class Ranks:
    """Stands for the rank of a run of two, whose other rank has the numbers `other`."""

    world_size, device = 2, torch.device("cpu")

    def __init__(self, first: bool, other: list[float]) -> None:
        self.is_global_zero, self.other = first, torch.tensor(other, dtype=torch.float64)

    def all_reduce(self, tensor: torch.Tensor, reduce_op: str) -> torch.Tensor:
        assert reduce_op == "sum"
        return tensor + self.other


@pytest.mark.parametrize("first", [True, False])
def test_the_mean_of_an_epoch_is_that_of_all_ranks_and_kept_by_one(first: bool) -> None:
    watch = LossWatch(1, Ranks(first, [4.0, 1.0]))  # type: ignore[arg-type]
    watch.add(torch.tensor(1.0), 2, ["a", "b"])
    watch.add_up()
    assert watch.state_dict()["count"] == (3 if first else 0)
    assert watch.epoch_mean() == 2.0 if first else math.isnan(watch.epoch_mean())


def test_a_bad_loss_of_another_rank_ends_this_one_without_a_sentence_of_its_own() -> None:
    watch = LossWatch(1, Ranks(True, [1.0]))  # type: ignore[arg-type]
    watch.add(torch.tensor(1.0), 1, ["a"])
    with pytest.raises(RuntimeError, match="another rank"):
        watch.check_all()
    watch = LossWatch(9, Ranks(True, [0.0]))  # type: ignore[arg-type]
    watch.add(torch.tensor(math.nan), 1, ["a"])
    with pytest.raises(TrainingError, match="the batch of a"):
        watch.check_all()
