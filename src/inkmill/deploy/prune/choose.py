"""Which channels stay: the three ways of TAO OCRNet's pruning, each over groups of coupled channels.

A group is everything that must lose the same channels, such as all convolutions of a residual trunk. It has one score a
channel and is decided on once, so `amount` means what it says for trunks too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from inkmill.config.tasks import PruneSetting
from inkmill.errors import ConfigError

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """The channels of a group.

    Attributes:
        scores: (N,) how much each channel matters, in 0..1, the highest 1.
        filters: how many filters each channel stands for.
    """

    scores: Scores
    filters: int = 1


def choose(groups: Sequence[Scored], settings: PruneSetting) -> list[NDArray[np.int64]]:
    """Return for each group the channels that go, ascending.

    The channels that stay are a multiple of `granularity`; a group that has no such number of channels below its own
    stays whole.

    Raises:
        ConfigError: the number that the mode needs is not given.
    """
    wanted = _MODES[settings.mode](groups, settings)
    return [
        np.sort(np.argsort(group.scores, kind="stable")[: len(group.scores) - kept])
        for group, kept in zip(groups, wanted, strict=True)
    ]


def _amount(groups: Sequence[Scored], settings: PruneSetting) -> list[int]:
    """Every group loses the same share, to the nearest multiple."""
    share = 1 - _given(settings, "amount", "0.4")
    step = settings.granularity
    return [_at_least(step, round(len(g.scores) * share / step) * step, g) for g in groups]


def _threshold(groups: Sequence[Scored], settings: PruneSetting) -> list[int]:
    """What scores above the threshold stays, filled up to a multiple."""
    least = _given(settings, "threshold", "0.3")
    return [_filled(settings.granularity, int((g.scores > least).sum()), g) for g in groups]


def _hybrid(groups: Sequence[Scored], settings: PruneSetting) -> list[int]:
    """One cut through all groups, so that `amount` of all filters lie below it.

    Scores of different layers cannot be compared. Each is therefore divided by the sum of itself and all that are
    higher in its group: its share of what would still be there if it were the next to go (as LAMP, Lee et al. 2021).
    """
    amount = _given(settings, "amount", "0.4")
    shares = [_share_of_the_rest(group.scores) for group in groups]
    weights = np.concatenate([np.full(len(group.scores), group.filters) for group in groups])
    together = np.concatenate(shares)
    order = np.argsort(together, kind="stable")
    below = np.cumsum(weights[order]) <= amount * weights.sum()
    goes = np.zeros(len(together), bool)
    goes[order[below]] = True
    starts = np.cumsum([0, *(len(share) for share in shares)])
    kept = [int((~goes[a:b]).sum()) for a, b in pairwise(starts)]
    return [_filled(settings.granularity, count, group) for count, group in zip(kept, groups, strict=True)]


def _share_of_the_rest(scores: Scores) -> Scores:
    order = np.argsort(scores, kind="stable")
    rising = scores[order]
    rest = np.cumsum(rising[::-1])[::-1]
    shares = np.empty_like(scores)
    shares[order] = rising / np.maximum(rest, np.finfo(np.float64).tiny)
    return shares


def _given(settings: PruneSetting, key: str, example: str) -> float:
    value = getattr(settings, key)
    if value is None:
        raise ConfigError(
            f"prune.prune_setting.mode={settings.mode} needs prune.prune_setting.{key}: "
            f"give prune.prune_setting.{key}={example}, for example"
        )
    return float(value)


def _filled(step: int, kept: int, group: Scored) -> int:
    return _at_least(step, -(-kept // step) * step, group)


def _at_least(step: int, kept: int, group: Scored) -> int:
    return min(max(kept, step), len(group.scores))


_MODES = {"amount": _amount, "threshold": _threshold, "experimental_hybrid": _hybrid}
