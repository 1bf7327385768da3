"""inkmill's own rows: loader x keep tier x engine x augmentation, through the same calls that training makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from inkmill.bench.contest import Augment, Contestant, Stream, Task
from inkmill.bench.strong import strong_spec
from inkmill.data.keep import Keep
from inkmill.data.loaders import LoadPlan, make_loader

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["inline", "threads", "workers"]
Tier = Literal["none", "disk", "ram"]
Engine = Literal["cv", "torch"]

_KINDS: tuple[Kind, ...] = ("inline", "threads", "workers")
_TIERS: tuple[Tier, ...] = ("none", "disk", "ram")
_TORCH = (("torch", "torch"),)


def ours() -> list[Contestant]:
    """Return all rows of inkmill's own."""
    rows = [_row(kind, tier, "none") for kind in _KINDS for tier in _TIERS]
    rows += [_row(kind, tier, "strong", engine) for kind in _KINDS for tier in _TIERS for engine in ("cv", "torch")]
    return rows


def _row(kind: Kind, tier: Tier, augment: Augment, engine: Engine = "cv") -> Contestant:
    stream: Stream = partial(_stream, kind, tier, engine)
    name = engine if augment == "strong" else "none"
    return Contestant(kind, stream, name, tier, augment, _TORCH, needs_gpu=name == "torch")


def _stream(kind: Kind, tier: Tier, engine: Engine, task: Task) -> Iterator[Tensor]:
    from inkmill.data.loaders.device import DeviceLoader

    workers = 0 if kind == "inline" else max(1, task.workers)
    loader = make_loader(plan_for(task, tier, engine), workers, "threads" if kind == "threads" else "workers")
    with closing(DeviceLoader(loader, task.device)) as on_device:
        while True:
            for batch in on_device:
                yield augmented(batch)


def plan_for(task: Task, tier: Tier, engine: Engine) -> LoadPlan:
    """Return the task as a loader takes it."""
    from inkmill.data.augment import Augmentation

    return LoadPlan(
        source=task.source,
        fit=task.fit,
        augmentation=Augmentation.from_spec(strong_spec()) if task.augment == "strong" else None,
        batch_size=task.batch_size,
        seed=task.seed,
        engine="cv" if engine == "cv" else "none",
        keep=Keep(tier, folder=task.folder / "kept"),
    )


def augmented(batch: Any) -> Tensor:
    """Return a batch's images, augmented on their device where the loader left that to be done."""
    images: Tensor = batch.images
    table = batch.extra.get("table")
    if table is None:
        return images
    from inkmill.data.augment.apply_torch import apply_torch

    return apply_torch(images, table)
