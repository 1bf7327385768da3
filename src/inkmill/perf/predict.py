"""How fast training will be: a bottleneck model in closed form, and the facts it rests on.

Training is as fast as the slowest of what it needs: the device for the step, each worker for its image, the cores for
everything on the CPU, the training process for launching. Near a tie the real thing is slower than either, for their
jitter does not coincide; a sum of high powers of the times stands in for that, so that headroom counts a little, and
more of it where workers wait for a disk, whose jitter is larger.

    GPU        device, workers and the training process work at the same time
    CPU        the step takes cores too: all work together is bounded by the cores
    0 workers  the training process makes the batch itself, between steps
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from inkmill import shared_memory as shared
from inkmill.config.dataset import DatasetSpec
from inkmill.data.loaders import LoadPlan, loader_for
from inkmill.data.loaders.plan import measure_sizes
from inkmill.data.pipeline.cache import default_cache_dir
from inkmill.data.pipeline.cache_pages import Layout
from inkmill.data.pipeline.pages import page_bytes
from inkmill.data.sources import Subset
from inkmill.machine import cores, memory_left
from inkmill.perf.rules import CACHE_ROOM

Tier = Literal["none", "disk", "ram", "gpu"]
Compile = Literal["auto"] | bool
"""As train.compile."""
Variant = tuple[str, tuple[tuple[str, Any], ...]]
"""A loader's name and the values of its options, by name: what is measured as one."""

STEP_KEYS = ("batch_size", "precision", "compile", "channels_last")
"""The fields of `Settings` that change the step itself."""

_TRAIN_KEYS = ("precision", "compile", "channels_last")  # all others are keys of `dataset`
_SHARPNESS = 8
_DISK_SHARPNESS = 4
_UNLIMITED = 1 << 62
_LOOKED_AT = 128  # whole pictures, whose mean size stands for all

Limits = dict[str, float]
"""Seconds an image that each thing needs; the largest is the limit."""


@dataclass(frozen=True, slots=True)
class ImageCost:
    """What one image costs, in seconds on one core unless said otherwise. Names are those of the loaders' stages.

    Attributes:
        read: from the page cache.
        decode, resize: to the model's input.
        augment: drawing and applying the augmentation parameters on the CPU.
        other: order, labels, collating.
        cached: taking an image from the cache instead of read, decode and resize.
        disk_wait: what a read from the disk takes longer, waiting; the core is free for others meanwhile.
        disk_cpu: what it takes longer of the core.
        ragged: laying a decoded image out for the GPU, which resizes what is streamed and not augmented on the CPU;
            None where the GPU cannot.
        transfer: waiting for the copy to the GPU, or for handing over; a cache on the GPU has neither.
        augment_gpu: augmenting on the GPU, in seconds of the GPU; None where that is not possible or not known.
        augment_host: launching that, in seconds of the training process.
    """

    read: float
    decode: float
    resize: float
    augment: float = 0.0
    other: float = 0.0
    cached: float = 0.0
    disk_wait: float = 0.0
    disk_cpu: float = 0.0
    ragged: float | None = None
    transfer: float = 0.0
    augment_gpu: float | None = None
    augment_host: float = 0.0

    @property
    def fresh(self) -> float:
        """Reading, decoding and resizing."""
        return self.read + self.decode + self.resize


@dataclass(frozen=True, slots=True)
class StepCost:
    """One way to do the training step, measured.

    Attributes:
        batch_size, precision, compile, channels_last: the settings.
        seconds: of the device for one image, augmentation left out.
        host: of the training process's CPU for one image: launching the step, augmentation left out, and labels.
    """

    batch_size: int
    precision: str
    compile: Compile
    channels_last: bool
    seconds: float
    host: float

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of `Settings` that this step stands for."""
        return {name: getattr(self, name) for name in STEP_KEYS}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a tuning plan decides; names and values are those of the spec.

    Attributes:
        options: values of the loader's own options (`LoaderInfo.options`), by name.
    """

    loader: str = "workers"
    workers: int = 4
    cache: Tier = "none"
    cache_gib: float = 32.0
    augment_on: str = "cpu"
    options: tuple[tuple[str, Any], ...] = ()
    batch_size: int = 32
    precision: str = "fp32"
    compile: Compile = False
    channels_last: bool = True

    def keys(self) -> dict[str, Any]:
        """Return the keys of the spec with their values."""
        values = asdict(self) | dict(self.options)
        del values["options"]
        return {f"{'train' if name in _TRAIN_KEYS else 'dataset'}.{name}": value for name, value in values.items()}

    def overrides(self, current: Settings) -> dict[str, Any]:
        """Return those that differ from `current`."""
        before = current.keys()
        return {key: value for key, value in self.keys().items() if key not in before or before[key] != value}


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that predictions rest on.

    Attributes:
        costs: of an image.
        steps: the ways to do the step; the first is the user's.
        on_gpu: the model trains on a GPU; else model and workers share the cores.
        cores: how many this process may use.
        samples: of the training set.
        epochs: of the run.
        cache: the tier in use.
        cache_bytes: size of all images, resized.
        room: bytes that a cache may take, by tier; without a tier that is not possible here.
        efficiency: what a worker does when all cores work, as a share of what it does alone.
        rates: images a second that loaders reach which do not count workers, by variant.
        gpu_can_augment: whether augmentation, if there is any, could run on a GPU.
        free_cores: of the cores, what other programs leave; None: all.
        page_cached: after the first epoch the files are read from memory.
        small_files: each sample is a file of its own.
    """

    costs: ImageCost
    steps: tuple[StepCost, ...]
    on_gpu: bool
    cores: int
    samples: int
    epochs: int = 10
    cache: Tier = "none"
    cache_bytes: int = 0
    room: Mapping[Tier, int] = field(default_factory=dict)
    efficiency: float = 1.0
    rates: Mapping[Variant, float] = field(default_factory=dict)
    gpu_can_augment: bool = True
    free_cores: float | None = None
    page_cached: bool = False
    small_files: bool = False

    def cached_share(self, tier: Tier, cache_gib: float) -> float:
        """Return the share of the images that a tier holds."""
        if tier == "none" or not self.cache_bytes:
            return 0.0
        room = self.room.get(tier, 0)
        share = min(1.0, (room if tier == "gpu" else min(room, cache_gib * 2**30)) / self.cache_bytes)
        return share if share == 1 or tier != "gpu" else 0.0  # the GPU holds all of them or none

    def step_of(self, settings: Settings) -> StepCost:
        """Return the measured step of some settings; raises ValueError where it was not measured."""
        for step in self.steps:
            if all(getattr(settings, name) == value for name, value in step.settings.items()):
                return step
        raise ValueError(f"no step was measured for {settings}")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A speed and what limits it.

    Attributes:
        settings: of what.
        images_per_s: once the cache is full.
        of_run: images a second over the whole run, its first epoch included.
        limit: step, workers, cores, host, or loader.
    """

    settings: Settings
    images_per_s: float
    of_run: float
    limit: str


def predict(settings: Settings, facts: Facts) -> Prediction:
    """Return the throughput of training with `settings`.

    Raises:
        ValueError: the step of these settings was not measured.
    """
    cached, cold = facts.cached_share(settings.cache, settings.cache_gib), not facts.page_cached
    # 1. The first epoch reads everything, and fills the cache; all later ones take from it.
    later, first = _limits(settings, facts, cached, cold), _limits(settings, facts, 0.0, cold=True)
    waits = facts.costs.disk_wait > 0
    steady, start = _seconds(later, waits and cold and cached < 1), _seconds(first, waits)
    if settings.cache == "gpu":  # the images are loaded before the first epoch, which is then like the others
        start += steady
    # 2. A cache must pay over the run as a whole.
    average = (start + (facts.epochs - 1) * steady) / facts.epochs
    return Prediction(settings, 1 / steady, 1 / average, max(later, key=lambda name: later[name]))


def _seconds(limits: Limits, waits: bool) -> float:
    """Return seconds an image: the largest limit, and a little more where others come close to it."""
    longest, power = max(limits.values()), _DISK_SHARPNESS if waits else _SHARPNESS
    if math.isinf(longest):
        return longest
    return longest * math.pow(sum((one / longest) ** power for one in limits.values()), 1 / power)


def _limits(settings: Settings, facts: Facts, cached: float, cold: bool) -> Limits:
    """Return what each part needs for an image, of which the share `cached` is, and the rest is read `cold` or not."""
    costs, step = facts.costs, facts.step_of(settings)
    free = facts.cores if facts.free_cores is None else facts.free_cores
    on_gpu = settings.augment_on == "gpu" or settings.cache == "gpu"
    # 1. The device and the process that launches its work.
    device = step.seconds + ((costs.augment_gpu or 0.0) if on_gpu else 0.0)
    host = step.host + (costs.augment_host if on_gpu else 0.0)
    if settings.cache == "gpu" and cached == 1:
        return {"step": device, "host": host}
    device += costs.transfer
    # 2. A loader that does not count workers was measured as a whole, with all cores for itself and as cold as the
    #    set is: what the training process takes of the cores is lost to it.
    if not loader_for(settings.loader, settings.cache).processes and settings.cache != "gpu" and cached < 1:
        rate = facts.rates.get((settings.loader, settings.options), 0.0)
        return {"step": device, "host": host, "loader": (1 / rate if rate else math.inf) + host / free}
    # 3. Workers share the cores; the disk is waited for beside them.
    fresh = costs.fresh + (costs.disk_cpu if cold else 0.0)
    augment = 0.0 if on_gpu else costs.augment
    if facts.on_gpu and not augment and settings.cache == "none" and costs.ragged is not None:
        fresh += costs.ragged - costs.resize  # the GPU resizes
    work = (1 - cached) * fresh + cached * costs.cached + augment + costs.other
    wait = (1 - cached) * costs.disk_wait if cold else 0.0
    if settings.workers == 0:
        own = work + wait + host
        return {"step": device, "host": own} if facts.on_gpu else {"step": device + work + wait}
    each = work / efficiency(settings.workers, facts)
    limits = {"step": device, "workers": (each + wait) / settings.workers, "cores": (each + host) / free}
    return limits | ({"host": host} if facts.on_gpu else {})  # on a CPU `host` is the step's own CPU time


def efficiency(workers: int, facts: Facts) -> float:
    """Return what one of some workers does, as a share of what it would do alone: from 1 to the measured one."""
    if facts.cores < 2:
        return 1.0
    return 1 - (1 - facts.efficiency) * (min(workers, facts.cores) - 1) / (facts.cores - 1)


def bytes_to_keep(plan: LoadPlan) -> int:
    """Return the size of a cache of all pictures; of whole ones about, by some of them, where not all were measured."""
    if plan.resize.mode != "page":
        return Layout(plan.resize, len(plan.source), plan.bucket_widths, _UNLIMITED).nbytes
    whole, sizes = len(plan.source), plan.sizes
    if sizes is None:
        some = np.unique(np.linspace(0, whole - 1, min(whole, _LOOKED_AT)).astype(np.int64))
        sizes = measure_sizes(Subset(plan.source, some))
    kept = page_bytes(plan.resize, sizes)
    assert kept is not None
    return int(kept.mean() * whole)


def look_up(
    plan: LoadPlan, dataset: DatasetSpec, device: torch.device, ranks: int = 1, cache_filled: bool = False
) -> dict[str, Any]:
    """Return the fields of `Facts` that need no measuring: what the data need and what the machine has left.

    Args:
        plan: what is loaded.
        dataset: names the cache's folder and the tier in use.
        device: where the model trains.
        ranks: trainers on this machine; each has a RAM cache of its own, the disk cache is one for all.
        cache_filled: the cache in use has taken its memory already.
    """
    needed = bytes_to_keep(plan)
    free: dict[Tier, int] = {"ram": 0, "disk": 0}
    # 1. RAM: what the container and the shared memory both allow.
    free["ram"] = min((left for left in (shared.bytes_left(), memory_left()) if left is not None), default=0) // ranks
    # 2. Disk: of the cache's folder, or of the nearest one above it that exists.
    folder = Path(dataset.cache_dir) if dataset.cache_dir else default_cache_dir()
    exists = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free["disk"] = shutil.disk_usage(exists).free
    # 3. GPU: images of one size only, and no augmentation by foreign code.
    fixed = plan.pipeline is None and not plan.resize.buckets
    if device.type == "cuda" and fixed:
        free["gpu"] = torch.cuda.mem_get_info(device)[0]
    room = {tier: int(CACHE_ROOM[tier] * bytes_) for tier, bytes_ in free.items()}
    if cache_filled and dataset.cache in room:  # what it took is not free any more, and still its own
        taken = needed if dataset.cache == "gpu" else min(needed, int(dataset.cache_gib * 2**30))
        room[dataset.cache] = max(room[dataset.cache], taken)
    return {
        "on_gpu": device.type == "cuda",
        "cores": max(1, cores() // ranks),
        "samples": len(plan.source),
        "cache": dataset.cache,
        "cache_bytes": needed,
        "room": room,
        "gpu_can_augment": device.type == "cuda" and fixed,
        "small_files": any(leaf.small_files for leaf in plan.source.leaves()),
    }
