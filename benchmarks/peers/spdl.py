"""SPDL: its pipeline of threads, over the same Pillow and torchvision v2 functions as the classic.

SPDL's own decoder (spdl.io) needs the system's FFmpeg libraries, which few machines have; its pipeline takes any
function, and this is what its documentation calls the first step of a migration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from inkmill.bench.baseline import ENGINE, NOTE, PilTransform
from inkmill.bench.cases import Augment, BenchmarkCase, LoadTask, upload

if TYPE_CHECKING:
    from torch import Tensor


def _endless(length: int, seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.permutation(length).tolist()


def stream(task: LoadTask) -> Iterator[Tensor]:
    """See `inkmill.bench.cases.Stream`."""
    import torch
    from spdl.pipeline import PipelineBuilder

    transform, source, threads = PilTransform(task), task.source, max(1, task.workers)

    def load(index: int) -> Tensor:
        return transform(source.get(index).image)

    pipeline = (
        PipelineBuilder()
        .add_source(_endless(len(source), task.seed))
        .pipe(load, concurrency=threads, output_order="completion")
        .aggregate(task.batch_size)
        .pipe(torch.stack)
        .add_sink(3)
        .build(num_threads=threads)
    )
    with pipeline.auto_stop():
        for batch in pipeline.get_iterator(timeout=60):
            if task.device.startswith("cuda"):
                batch = batch.pin_memory()
            yield upload(batch, task.device).permute(0, 2, 3, 1)


def case(augment: Augment) -> BenchmarkCase:
    """Return this peer's row."""
    note = f"threads of one process; spdl.io's decoder needs FFmpeg and is not used; {NOTE}"
    return BenchmarkCase("spdl", stream, ENGINE, augment=augment, note=note)
