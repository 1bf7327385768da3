"""A small set in the place of a large one: what to measure with where the large one cannot be had."""

from __future__ import annotations

import numpy as np

from inkmill.data.sources import Mix, Source


class StandsFor(Mix):
    """A source as one of `count` samples, of which no two that are asked for are the same, as long as there are others.

    Hardly any two samples of a large set are read for one another's sake; those of a plain repetition would be, and
    what is to be read from the disk would come from memory.

    Args:
        source: the small set.
        count: how many samples it stands for.
    """

    def __init__(self, source: Source, count: int) -> None:
        super().__init__([source], [count / len(source)])
        self._places: dict[int, int] = {}
        self._scattered = np.random.default_rng(0).permutation(len(source))  # as those of a random choice lie

    def locate(self, index: int) -> tuple[int, int]:
        """See `Mix.locate`; in the order in which samples are asked for first."""
        place = self._places.setdefault(self._checked(index), len(self._places) % len(self._scattered))
        return 0, int(self._scattered[place])
