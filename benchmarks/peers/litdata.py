"""LitData: the set optimised into chunks first, then StreamingDataset and StreamingDataLoader, as its README does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from inkmill.bench.baseline import ENGINE, NOTE, PilTransform
from inkmill.bench.cases import Augment, BenchmarkCase, LoadTask, upload
from inkmill.data.sources import Source

if TYPE_CHECKING:
    from torch import Tensor


class _OnImage:
    """Applies a transform to the image of a sample."""

    def __init__(self, transform: PilTransform) -> None:
        self._transform = transform

    def __call__(self, sample: dict[str, Any]) -> Tensor:
        return self._transform(sample["image"])


def _encoded(index: int, source: Source) -> dict[str, Any]:
    return {"image": source.get(index).image}


def _chunks(task: LoadTask) -> str:
    import litdata

    folder = task.folder / "litdata"
    if not folder.exists():
        litdata.optimize(
            partial(_encoded, source=task.source),
            list(range(len(task.source))),
            str(folder),
            chunk_bytes="64MB",
            num_workers=1,
            verbose=False,
        )
    return str(folder)


def stream(task: LoadTask) -> Iterator[Tensor]:
    """See `inkmill.bench.cases.Stream`."""
    import litdata

    loader = litdata.StreamingDataLoader(
        litdata.StreamingDataset(_chunks(task), shuffle=True, transform=_OnImage(PilTransform(task))),
        batch_size=task.batch_size,
        num_workers=task.workers,
        pin_memory=task.device.startswith("cuda"),
        persistent_workers=task.workers > 0,
    )
    while True:
        for batch in loader:
            yield upload(batch, task.device).permute(0, 2, 3, 1)


def case(augment: Augment) -> BenchmarkCase:
    """Return this peer's row."""
    note = f"reads its own chunks of 64 MB; {NOTE}"
    return BenchmarkCase("litdata", stream, ENGINE, augment=augment, note=note)
