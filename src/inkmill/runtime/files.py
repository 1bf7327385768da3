"""Reading many files: loaded ahead by the loaders, read in batches, given back in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.sources.folder import FileSource
from inkmill.runtime.reader import BaseReader, Reading


def read_files(
    reader: BaseReader, paths: list[Path], *, batch_size: int = 64, workers: int = 0, problems: list[str] | None = None
) -> Iterator[Reading]:
    """Yield the reading of every image, in order.

    Args:
        reader: what reads.
        paths: image files.
        batch_size: images a batch; the strings do not depend on it.
        workers: loader processes.
        problems: gets one sentence for each image that could not be read; without it the first is raised.

    Raises:
        DataError: an image cannot be read, and there is no `problems`.
    """
    source = FileSource(paths)
    bad: Literal["raise", "skip"] = "raise" if problems is None else "skip"
    plan = LoadPlan(source, reader.resize, batch_size=batch_size, shuffle=False, on_bad_sample=bad, max_bad=1.0)
    found: dict[int, Reading] = {}
    wanted = 0
    with make_loader(plan, workers=workers) as loader:
        for batch, texts, confidences in reader.read_batches(loader):
            rows = zip(batch.index.tolist(), batch.keys, texts, confidences.tolist(), strict=True)
            found.update((index, Reading(text, confidence, key)) for index, key, text, confidence in rows)
            while wanted in found:  # batches of one width each come out of order; what is in order goes out at once
                yield found.pop(wanted)
                wanted += 1
        skipped = loader.stats.skipped
    yield from (found[index] for index in sorted(found))
    if problems is not None:
        problems += [f"{key}: {reason}" for reason, keys in skipped.items() for key in keys]
