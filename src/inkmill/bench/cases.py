"""What a benchmark case is, and the cases of inkmill: one for each way in which a loader of the registry can be set.

The finish line is the same for all: a uint8 batch (B, 32, 128, 3), RGB, on the training device, where normalising is
one cheap step inside the model. All read the same bytes; what is done before the clock runs (packing shards, say) is
not counted for anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inkmill.bench.workload import RESIZE, strong_spec
from inkmill.data.loaders import LOADERS, AugmentOn, LoaderInfo, LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source

if TYPE_CHECKING:
    from torch import Tensor

    from inkmill.data.types import Batch

Augment = Literal["none", "strong"]
AUGMENTS: tuple[Augment, ...] = ("none", "strong")


@dataclass(frozen=True, slots=True)
class LoadTask:
    """What a case has to load.

    Attributes:
        source: the samples; their bytes are what every case reads.
        folder: scratch space for file formats of other libraries and for cached images.
        batch_size: images a batch.
        workers: processes or threads that a case may use; 0 loads in the calling thread.
        device: the torch device that batches end on.
        augment: none or strong.
        resize: the size that images are brought to.
        seed: of order and augmentation, where a case takes one.
    """

    source: Source
    folder: Path
    batch_size: int
    workers: int
    device: str
    augment: Augment = "strong"
    resize: Resize = RESIZE
    seed: int = 1


Stream = Callable[[LoadTask], "Iterator[Tensor]"]
"""A generator of batches on the task's device, without end; closing it ends its processes and threads. It imports what
it needs when it starts, so that a package that is not installed costs its own row alone."""


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One way to load, a row of the table.

    Attributes:
        loader: its name.
        stream: produces the batches.
        engine: who augments: for inkmill's loaders the value of `augment_on`, else the libraries' names.
        cache: where resized images are cached.
        augment: none or strong.
        note: how its work differs from that of the others.
        ours: whether it is a loader of inkmill.
    """

    loader: str
    stream: Stream
    engine: str
    cache: str = "none"
    augment: Augment = "strong"
    note: str = ""
    ours: bool = False


def inkmill_cases(augment: Augment) -> list[BenchmarkCase]:
    """Return every loader of the registry, with every cache, and every engine where there is something to augment."""
    return [
        loader_case(info, cache, engine, augment)
        for info in LOADERS.values()
        for cache in info.caches
        for engine in (info.augments_on if augment == "strong" else info.augments_on[:1])
    ]


def loader_case(
    info: LoaderInfo, cache: str, engine: AugmentOn, augment: Augment, note: str = "", **options: Any
) -> BenchmarkCase:
    """Return the case of one loader; `options` are values for the keys in `LoaderInfo.options`."""
    stream = partial(_stream, info.name, cache, engine, options)
    return BenchmarkCase(
        info.name, stream, engine if augment == "strong" else "none", cache, augment, note=note, ours=True
    )


def _stream(kind: str, cache: str, engine: AugmentOn, options: dict[str, Any], task: LoadTask) -> Iterator[Tensor]:
    with closing(open_case(task, kind, cache, engine, **options)) as loader:
        while True:
            for batch in loader:
                yield augmented(batch)


def open_case(task: LoadTask, kind: str, cache: Any, engine: AugmentOn, **options: Any) -> Any:
    """Return an inkmill loader for the task, whose batches end on the task's device, as training opens it.

    Raises:
        ConfigError: the loader or the engine needs a GPU, and the task's device is none.
        MissingExtraError: the loader needs a package that is not installed.
    """
    from inkmill.data.loaders.device import DeviceLoader
    from inkmill.errors import ConfigError

    if engine == "gpu" and task.augment == "strong" and not task.device.startswith("cuda"):
        raise ConfigError("augment_on=gpu needs a GPU")
    # Zero workers load in the calling thread; a loader without processes of its own counts threads, one at least.
    workers = task.workers if LOADERS[kind].processes else max(1, task.workers)
    loader = make_loader(plan_for(task, cache), workers, kind, augment_on=engine, device=task.device, **options)
    return DeviceLoader(loader, task.device)


def plan_for(task: LoadTask, cache: Any) -> LoadPlan:
    """Return the task as a loader takes it; the loader that caches on the GPU needs no cache in its plan."""
    from inkmill.data.augment import Augmentation

    return LoadPlan(
        source=task.source,
        resize=task.resize,
        augmentation=Augmentation.from_spec(strong_spec()) if task.augment == "strong" else None,
        batch_size=task.batch_size,
        seed=task.seed,
        cache=CacheConfig("none" if cache == "gpu" else cache, folder=task.folder / "cache"),
    )


def augmented(batch: Batch) -> Tensor:
    """Return a batch's images, augmented on their device where the loader left that to be done."""
    from inkmill.data.augment.gpu import apply_deferred

    images: Tensor = batch.images
    return images if batch.augmentation is None else apply_deferred(images, batch.augmentation)


def upload(batch: Any, device: str) -> Tensor:
    """Copy a host batch, tensor or array, to the device; from pinned memory this does not wait."""
    import torch

    tensor = batch if isinstance(batch, torch.Tensor) else torch.from_numpy(batch)
    return tensor.to(device, non_blocking=True)
