from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from injected import RepeatedSource
from inkmill.config.dataset import SourceSpec
from inkmill.data.sources import Subset, open_source


def test_a_repeated_source_serves_each_image_before_any_twice(captchas: Path) -> None:
    small = Subset(open_source(SourceSpec(path=str(captchas))), range(50))
    large = RepeatedSource(small, 1_000_000)
    assert len(large) == 1_000_000
    rows = np.random.default_rng(0).choice(len(large), 50, replace=False).tolist()
    assert len({large.key(row) for row in rows}) == 50
    again: RepeatedSource = pickle.loads(pickle.dumps(large))  # as in a worker process
    assert [again.get(row).image for row in rows] == [large.get(row).image for row in rows]
    assert large.key(next(row for row in range(99) if row not in rows)) in {large.key(row) for row in rows}
