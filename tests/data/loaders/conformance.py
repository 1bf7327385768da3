"""The loaders that must keep every promise of test_conformance.py. A new loader joins by one line of CASES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from inkmill.data.loaders import LOADERS, Loader, LoadPlan, make_loader
from inkmill.data.loaders.dali import has_dali

needs_dali = (pytest.mark.dali, pytest.mark.skipif(not has_dali(), reason="DALI is not installed"))


def _resident(plan: LoadPlan) -> Loader:
    pytest.importorskip("torch")
    from inkmill.data.loaders.resident import ResidentLoader

    return ResidentLoader(plan, "cpu")


@dataclass(frozen=True)
class Case:
    """One way to load.

    Attributes:
        kind: the name of its record in LOADERS.
        open: opens a loader without a GPU; all promises are compared with those of the inline loader.
        reads_once: samples are read in the first epoch alone: a bad one is known before the first batch, and polygons
            are resized once.
        marks: of pytest.
    """

    kind: str
    open: Callable[[LoadPlan], Loader]
    reads_once: bool = False
    marks: tuple[pytest.MarkDecorator, ...] = ()


CASES = {
    "inline": Case("workers", make_loader),
    "one-worker": Case("workers", lambda plan: make_loader(plan, 1)),
    "two-workers": Case("workers", lambda plan: make_loader(plan, 2), marks=(pytest.mark.slow,)),
    "resident": Case("resident", _resident, reads_once=True),
    "dali": Case("dali", lambda plan: make_loader(plan, 1, "dali"), marks=needs_dali),
}

assert {case.kind for case in CASES.values()} == set(LOADERS), "each loader of the registry joins the suite"
