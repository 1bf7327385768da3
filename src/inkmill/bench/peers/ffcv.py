"""FFCV: kept in the table, so that nobody wonders where it is.

It ships no wheels; its source builds only beside OpenCV and libturbojpeg with their headers, and on the machines this
was written on it does not build. A row that nobody has seen run would be worth nothing, so there is none yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inkmill.bench.contest import Augment, Contestant, Task

if TYPE_CHECKING:
    from torch import Tensor


def _stream(task: Task) -> Iterator[Tensor]:
    raise NotImplementedError("FFCV is never run: its row says why")


def contestant(augment: Augment) -> Contestant:
    """Return this peer's row, which only says why it is empty."""
    ragged = "builds from source only, with the headers of OpenCV and libturbojpeg; no row was ever seen to run"
    return Contestant("ffcv", _stream, "FFCV", augment=augment, needs=(("ffcv", "ffcv"),), ragged=ragged)
