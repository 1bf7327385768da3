"""inkmill's own rows: loader x cache tier x engine x augmentation, through the same calls that training makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from inkmill.bench.contest import Augment, Contestant, Task, upload
from inkmill.bench.strong import strong_spec
from inkmill.data.loaders import AugmentOn, LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig

if TYPE_CHECKING:
    from torch import Tensor

    from inkmill.data.types import Batch

Kind = Literal["inline", "workers"]
Tier = Literal["none", "disk", "ram"]
Engine = Literal["cv", "torch", "dali-cpu", "dali-mixed", "dali-gpu", "dali-mixed-ops", "dali-gpu-ops"]

_KINDS: tuple[Kind, ...] = ("inline", "workers")
_TIERS: tuple[Tier, ...] = ("none", "disk", "ram")
_TORCH = (("torch", "torch"),)
_DALI = (*_TORCH, ("nvidia.dali", "'inkmill[dali-cuda13]'"))

_PLACES: dict[Engine, tuple[Literal["cpu", "mixed"], Literal["cpu", "gpu"]]] = {
    "dali-cpu": ("cpu", "cpu"),
    "dali-mixed": ("cpu", "gpu"),
    "dali-gpu": ("mixed", "gpu"),
    "dali-mixed-ops": ("cpu", "gpu"),
    "dali-gpu-ops": ("mixed", "gpu"),
}
"""Where DALI decodes, and where it fits, and augments if it is to."""

_BY_TORCH: dict[Engine, str] = dict.fromkeys(
    ("dali-mixed", "dali-gpu"), "decoded and resized by DALI, augmented by the torch engine"
)
"""As training does it where the input has one size; those named ops augment by DALI's own operators."""


def ours() -> list[Contestant]:
    """Return all rows of inkmill's own."""
    rows = [_row(kind, tier, "none") for kind in _KINDS for tier in _TIERS]
    rows += [_dali_row(engine, "none", "none") for engine in _PLACES if not engine.endswith("-ops")]
    rows += [_resident_row("none")]
    rows += [_row(kind, tier, "strong", engine) for kind in _KINDS for tier in _TIERS for engine in ("cv", "torch")]
    rows += [_dali_row(engine, tier, "strong") for engine in _PLACES for tier in ("none", "ram")]
    return [*rows, _resident_row("strong")]


def _row(kind: Kind, tier: Tier, augment: Augment, engine: Engine = "cv") -> Contestant:
    name = engine if augment == "strong" else "none"
    stream = partial(_stream, kind, tier, engine)
    return Contestant(kind, stream, name, tier, augment, _TORCH, needs_gpu=engine == "torch")


def _dali_row(engine: Engine, tier: Tier, augment: Augment) -> Contestant:
    stream = partial(_dali_stream, engine, tier)
    note = _BY_TORCH.get(engine, "") if augment == "strong" else ""
    return Contestant("dali", stream, engine, tier, augment, _DALI, needs_gpu=engine != "dali-cpu", note=note)


def _resident_row(augment: Augment) -> Contestant:
    name = "torch" if augment == "strong" else "none"
    return Contestant("resident", _resident_stream, name, "gpu", augment, _TORCH, needs_gpu=True)


def _stream(kind: Kind, tier: Tier, engine: Engine, task: Task) -> Iterator[Tensor]:
    from inkmill.data.loaders.device import DeviceLoader

    workers = 0 if kind == "inline" else max(1, task.workers)
    loader = make_loader(plan_for(task, tier), workers, augment_on="gpu" if engine == "torch" else "cpu")
    with closing(DeviceLoader(loader, task.device)) as on_device:
        yield from _forever(on_device, augmented)


def _dali_stream(engine: Engine, tier: Tier, task: Task) -> Iterator[Tensor]:
    decode, place = _PLACES[engine]
    augment_on: AugmentOn = "gpu" if engine in _BY_TORCH else "cpu" if place == "cpu" else "dali"
    plan = plan_for(task, tier)
    loader = make_loader(plan, task.workers, "dali", augment_on=augment_on, device=task.device, decode_on=decode)
    with closing(loader):
        yield from _forever(loader, lambda batch: upload(augmented(batch), task.device))


def _resident_stream(task: Task) -> Iterator[Tensor]:
    from inkmill.data.loaders.resident import ResidentLoader

    with closing(ResidentLoader(plan_for(task, "none"), task.device, task.workers)) as loader:
        yield from _forever(loader, augmented)


def _forever(loader: Any, images: Callable[[Batch], Tensor]) -> Iterator[Tensor]:
    while True:
        for batch in loader:
            yield images(batch)


def plan_for(task: Task, tier: Tier) -> LoadPlan:
    """Return the task as a loader takes it."""
    from inkmill.data.augment import Augmentation

    return LoadPlan(
        source=task.source,
        resize=task.resize,
        augmentation=Augmentation.from_spec(strong_spec()) if task.augment == "strong" else None,
        batch_size=task.batch_size,
        seed=task.seed,
        cache=CacheConfig(tier, folder=task.folder / "kept"),
    )


def augmented(batch: Batch) -> Tensor:
    """Return a batch's images, augmented on their device where the loader left that to be done."""
    images: Tensor = batch.images
    if batch.augmentation is None:
        return images
    from inkmill.data.augment.gpu import apply_deferred

    return apply_deferred(images, batch.augmentation)
