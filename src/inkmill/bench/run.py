"""All rows in one run, one after another on the same data: contestants are compared with what ran beside them."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inkmill.bench.contest import AUGMENTS, Augment, Contestant, Task
from inkmill.bench.crops import write_crops
from inkmill.bench.measure import measure
from inkmill.bench.ours import ours
from inkmill.bench.peers import peers
from inkmill.config.dataset import SourceSpec
from inkmill.data.loaders.pool import SLOTS
from inkmill.data.sources import Source, Subset, open_source
from inkmill.errors import ConfigError, MissingExtraError, first_line
from inkmill.registry import suggest

OURS, PEER = "inkmill", "peer"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        loader, keep, engine, augment: which contestant; see `Contestant`.
        images_per_s: None where it did not run; `note` says why.
        spread: range of the windows over their median.
        note: what its work differs in, or why it did not run.
        kind: "inkmill" or "peer".
        first_s: seconds to the first batch.
        failed: it should have run, and broke.
    """

    loader: str
    cache: str
    engine: str
    augment: str
    images_per_s: float | None
    spread: float | None
    note: str
    kind: str
    first_s: float | None = None
    failed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `inkmill bench loaders` was asked for.

    Attributes:
        path: the user's data; None renders crops.
        images: how many crops to render.
        seconds: measuring time a row; warm-up comes on top.
        workers: processes or threads.
        batch_size: images a batch.
        only: names of loaders or engines to run; empty for all.
        device: a torch device.
        augment: only the rows with this augmentation; None for both.
    """

    path: str | None
    images: int
    seconds: float
    workers: int
    batch_size: int
    only: tuple[str, ...]
    device: str
    augment: Augment | None = None


def default_device() -> str:
    """Return cuda where there is a GPU, else cpu.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "train", "inkmill bench") from None
    return "cuda" if torch.cuda.is_available() else "cpu"


def contestants(only: Sequence[str], augment: Augment | None = None) -> list[tuple[str, Contestant]]:
    """Return (kind, contestant) in the order of the table: peers first, then ours, no augmentation before strong.

    Raises:
        ConfigError: a name in `only` that no loader and no engine has.
    """
    everyone = [(PEER, c) for each in AUGMENTS for c in peers(each)]
    everyone += [(OURS, c) for c in ours()]
    names = list(dict.fromkeys([c.loader for _, c in everyone] + [c.engine for kind, c in everyone if kind == OURS]))
    for name in only:
        if name not in names:
            raise ConfigError(f"unknown loader {name!r}{suggest(name, names)}; known: {', '.join(names)}")
    wanted = [(kind, c) for kind, c in everyone if augment in (None, c.augment)]
    return [(kind, c) for kind, c in wanted if not only or c.loader in only or c.engine in only]


def run(settings: Settings) -> Iterator[Row]:
    """Measure, yielding each row as it is done.

    Raises:
        ConfigError: an unknown loader.
        DataError: the user's data cannot be read.
    """
    entries = contestants(settings.only, settings.augment)
    with tempfile.TemporaryDirectory(prefix="inkmill-bench-") as scratch:
        source = _source(settings, Path(scratch))
        for kind, contestant in entries:
            task = Task(
                source=source,
                folder=Path(scratch),
                batch_size=min(settings.batch_size, len(source)),
                workers=settings.workers,
                device=settings.device,
                augment=contestant.augment,
            )
            yield _row(kind, contestant, task, settings.seconds)


def _source(settings: Settings, scratch: Path) -> Source:
    """Return the user's samples or rendered ones, in whole batches: a short one is another shape to compile for."""
    path = settings.path or str(write_crops(scratch / "crops", settings.images))
    source = open_source(SourceSpec(path=path))
    surplus = len(source) % min(settings.batch_size, len(source))
    return Subset(source, np.arange(len(source) - surplus)) if surplus else source


def _row(kind: str, contestant: Contestant, task: Task, seconds: float) -> Row:
    c = contestant
    reason = c.missing(task.device)
    if reason is not None:
        return Row(c.loader, c.cache, c.engine, c.augment, None, None, reason, kind)
    # Processes may have batches made ahead before the clock runs: these are warm-up too.
    round_images = task.workers * task.batch_size
    ahead = (SLOTS if kind == OURS else 2) * round_images
    # Where pictures are kept, the first pass fills the store: it is warm-up.
    warm_images = max(ahead, len(task.source) if c.cache != "none" else 2 * task.batch_size)
    stream = c.stream(task)
    try:
        result = measure(stream, seconds, warm_images, round_images)
    except Exception as error:  # one contestant's fall must not end the race, and is shown
        reason = f"failed: {type(error).__name__}: {first_line(error)}"
        return Row(c.loader, c.cache, c.engine, c.augment, None, None, reason[:300], kind, failed=True)
    finally:
        getattr(stream, "close", lambda: None)()
        del stream
        gc.collect()  # some peers end their processes only when they are collected
    speed, spread = round(result.images_per_s, 1), round(result.spread, 3)
    return Row(c.loader, c.cache, c.engine, c.augment, speed, spread, c.note, kind, round(result.first_s, 2))
