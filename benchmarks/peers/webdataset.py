"""WebDataset's own loader over tar shards, with Pillow and torchvision v2 as its README does."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inkmill.bench.baseline import ENGINE, NOTE, PilTransform, worker_context
from inkmill.bench.cases import Augment, BenchmarkCase, LoadTask, upload

if TYPE_CHECKING:
    from torch import Tensor

_SHARDS = 32
"""At least as many as workers, or some of them would have nothing to do."""


def write_shards(task: LoadTask) -> list[str]:
    """Write the source's bytes as tar shards, where they are not there yet, and return their paths."""
    folder = task.folder / "webdataset"
    count = min(max(_SHARDS, task.workers), len(task.source))
    paths = [folder / f"crops-{number:04d}.tar" for number in range(count)]
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, path in enumerate(paths):
            _write_shard(task, path, range(number, len(task.source), count))
    return [str(path) for path in paths]


def _write_shard(task: LoadTask, path: Path, indices: range) -> None:
    with tarfile.open(path, "w") as tar:
        for index in indices:
            data = task.source.get(index).image
            member = tarfile.TarInfo(f"{index:09d}.image")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def stream(task: LoadTask) -> Iterator[Tensor]:
    """See `inkmill.bench.cases.Stream`."""
    import webdataset as wds

    dataset = (
        wds.WebDataset(write_shards(task), resampled=True, shardshuffle=False)
        .shuffle(1000)
        .to_tuple("image")
        .map_tuple(PilTransform(task))
        .batched(task.batch_size)
    )
    pinned, context = task.device.startswith("cuda"), worker_context(task)
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=task.workers, pin_memory=pinned, multiprocessing_context=context
    )
    for (batch,) in loader:
        yield upload(batch, task.device).permute(0, 2, 3, 1)


def case(augment: Augment) -> BenchmarkCase:
    """Return this peer's row."""
    note = f"reads tar shards; local shuffle (buffer of 1000); {NOTE}"
    return BenchmarkCase("webdataset", stream, ENGINE, augment=augment, note=note)
