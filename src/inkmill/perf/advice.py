"""Which one setting would help a training run that waits for its data; a function of what was measured, without state.

The slowest stage alone does not say what to change: slow decoding may want more workers, cached pictures, or
nothing but another machine. So each cause has its remedies in order, and the first that this machine has room for is
the advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inkmill.data.loaders.plan import Seconds

IDLE = 0.5
"""Makers that are at work for a smaller share of the time than this are not what training waits for."""
RAM_SHARE, GPU_SHARE, DISK_SHARE = 0.75, 0.5, 0.9
"""How much of what is free now a store may take: batches, and the model's larger ones, need some too."""

_GIB = 2**30
_DOING = {
    "read": "reading",
    "decode": "decoding",
    "resize": "resizing",
    "cache": "copying cached pictures",
    "augment": "augmentation",
    "other": "collating",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What was measured while training waited.

    Attributes:
        share: of the time, 0..1, that training waits for data.
        busy: share of the time, 0..1, that those who make batches were at it.
        copying: share of the waiting, 0..1, that was for a batch's copy to the GPU.
        stages: seconds by stage.
    """

    share: float
    busy: float
    copying: float
    stages: Seconds

    def slowest(self) -> tuple[str, float]:
        """Return the stage that took most, and its share of all stages."""
        seconds = {stage: max(0.0, some) for stage, some in self.stages.items()}
        stage = max(seconds, key=lambda name: seconds[name], default="other")
        return stage, seconds.get(stage, 0.0) / (sum(seconds.values()) or 1.0)


@dataclass(frozen=True, slots=True)
class Loading:
    """How the run loads.

    Attributes:
        who: the name of the loader, see LoaderInfo; "resident": pictures lie on the GPU already.
        makers: how many of them; 0 where training makes its batches itself.
        keep: where resized pictures are kept.
        cache_gib: the cap of that store.
        store_bytes: what a store of all pictures would take.
        makers_augment: whether the random changes are applied by those who make the batches.
        gpu_can_augment: whether a GPU could do that, and hold the pictures: one input size, changes that are numbers.
        small_files: whether each sample is a file of its own.
        ranks: trainers on this machine; each has a store of its own in RAM.
    """

    who: str
    makers: int
    cache: Literal["none", "disk", "ram", "gpu"]
    cache_gib: float
    store_bytes: int
    makers_augment: bool
    gpu_can_augment: bool
    small_files: bool
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine has for one trainer.

    Attributes:
        cores: that it may use.
        idle_cores: of these, with nothing to do.
        ram, disk, gpu: free bytes; 0 where there is no such thing.
    """

    cores: int
    idle_cores: int
    ram: int
    disk: int
    gpu: int


@dataclass(frozen=True, slots=True)
class Advice:
    """One line for people.

    Attributes:
        cause: a stage, or "copy", "handing over", "dali".
        line: how much time is lost, to what, and what would help.
    """

    cause: str
    line: str


_Remedy = Callable[[Waiting, Loading, Machine], str | None]


def advise(waiting: Waiting, loading: Loading, machine: Machine) -> Advice:
    """Name the cause of waiting and the setting that would help."""
    cause, reason = _cause(waiting, loading)
    remedies = (remedy(waiting, loading, machine) for remedy in _REMEDIES[cause])
    remedy = next((words for words in remedies if words is not None), None) or _nothing(cause, loading, machine)
    return Advice(cause, f"{waiting.share:.0%} of the time training waits for data; {reason}: {remedy}")


def _cause(waiting: Waiting, loading: Loading) -> tuple[str, str]:
    if waiting.copying > 0.5:
        return "copy", f"{waiting.copying:.0%} of that is for the copy to the GPU"
    if loading.makers and waiting.busy < IDLE:
        if loading.who == "dali":
            return "dali", f"DALI's own work takes it, for what feeds DALI is idle {1 - waiting.busy:.0%} of the time"
        return "handing over", f"the {loading.who} that load are idle {1 - waiting.busy:.0%} of the time"
    stage, share = waiting.slowest()
    whose = "the loader's" if not loading.makers or loading.who in ("dali", "resident") else f"the {loading.who}'"
    return stage, f"{_DOING[stage]} takes {share:.0%} of {whose} time"


def _all_workers_needed(waiting: Waiting, loading: Loading, machine: Machine) -> str | None:
    """More workers, where that alone ends the waiting."""
    needed = _workers_needed(waiting, loading)
    return _workers(waiting, loading, machine) if needed <= loading.makers + machine.idle_cores else None


def _workers(waiting: Waiting, loading: Loading, machine: Machine) -> str | None:
    """As many workers as are needed, or as there are cores for."""
    if loading.who == "resident" or machine.idle_cores < 1:
        return None
    count = min(_workers_needed(waiting, loading), loading.makers + machine.idle_cores)
    cores = "a core that is" if machine.idle_cores == 1 else f"some of {machine.idle_cores} cores that are"
    return f"dataset.workers={count} would use {cores} idle"


def _workers_needed(waiting: Waiting, loading: Loading) -> int:
    left = max(1 - waiting.share, 0.01)  # of the time, in which training must get all its data
    return max(loading.makers + 1, math.ceil(loading.makers / left) if loading.makers else math.ceil(1 / left - 1))


def _cache_config(waiting: Waiting, loading: Loading, machine: Machine) -> str | None:
    """The first tier that all pictures fit into."""
    return _in_memory(waiting, loading, machine) or _tier("disk", loading, machine)


def _in_memory(waiting: Waiting, loading: Loading, machine: Machine) -> str | None:
    """The same without the disk, where reading is what is slow."""
    return _tier("ram", loading, machine) or _cache_on_gpu(waiting, loading, machine)


def _tier(tier: Literal["ram", "disk"], loading: Loading, machine: Machine) -> str | None:
    if tier == "ram":
        need, free, room = loading.store_bytes * loading.ranks, machine.ram, machine.ram * RAM_SHARE
    else:  # one file for all ranks
        need, free, room = loading.store_bytes, machine.disk, machine.disk * DISK_SHARE
    small_cap = loading.store_bytes > loading.cache_gib * _GIB
    cap = f"dataset.cache_gib={math.ceil(loading.store_bytes / _GIB)}"
    if need > room or loading.cache not in ("none", tier):
        return None
    if loading.cache == tier:
        return f"{cap} would keep all pictures" if small_cap else None
    return f"dataset.cache={tier}{' ' + cap if small_cap else ''} would save it ({_size(need)} of {_size(free)} free)"


def _cache_on_gpu(waiting: Waiting, loading: Loading, machine: Machine) -> str | None:
    fits = loading.gpu_can_augment and loading.store_bytes <= machine.gpu * GPU_SHARE
    if loading.cache == "gpu" or loading.who == "dali" or not fits:
        return None
    return f"dataset.cache=gpu would save it ({_size(loading.store_bytes)} of {_size(machine.gpu)} free)"


def _shards(waiting: Waiting, loading: Loading, machine: Machine) -> str | None:
    if not loading.small_files:
        return None
    return "`inkmill convert SOURCE FOLDER --to shards` would put the many small files into few large ones"


def _augment_on_gpu(waiting: Waiting, loading: Loading, machine: Machine) -> str | None:
    wanted = loading.makers_augment and loading.gpu_can_augment and machine.gpu
    return "dataset.augment_on=gpu would leave it to the GPU" if wanted else None


_PREPARING = (_all_workers_needed, _cache_config, _workers)
_REMEDIES: dict[str, tuple[_Remedy, ...]] = {
    "read": (_in_memory, _shards, _workers),
    "decode": _PREPARING,
    "resize": _PREPARING,
    "augment": (_augment_on_gpu, _workers),
    "cache": (_workers, _cache_on_gpu),
    "other": (_workers, _cache_on_gpu),
    "copy": (_cache_on_gpu,),
    "handing over": (_cache_on_gpu,),
    "dali": (_cache_config,),
}


def _nothing(cause: str, loading: Loading, machine: Machine) -> str:
    """Say why no setting would help."""
    if cause in ("copy", "handing over"):
        return "a larger dataset.batch_size is handed over less often"
    if cause == "dali":
        return "dataset.loader=workers loads without DALI"
    if cause == "read":
        return "no setting would help, but a faster disk would"
    busy = f"the {machine.cores} cores of this machine are all busy" if machine.cores > 1 else "its one core is busy"
    if cause == "augment":
        return f"{busy}, so only fewer changes in dataset.augmentation would help"
    if cause in ("decode", "resize") and loading.cache == "none":
        need, ram, disk = (_size(size) for size in (loading.store_bytes, machine.ram, machine.disk))
        return f"{busy}, and keeping the pictures needs {need} ({ram} of RAM and {disk} of disk are free)"
    return f"{busy}, so only more of them would help"


def _size(size: int) -> str:
    if size < _GIB:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / _GIB:.1f} GiB" if size < 10 * _GIB else f"{size / _GIB:.0f} GiB"
