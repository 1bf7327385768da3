"""What advice on loading rests on beside the clocks: how the run loads, and what the machine has left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from time import perf_counter

import torch

from inkmill import machine
from inkmill import shared_memory as shared
from inkmill.config.dataset import DatasetSpec
from inkmill.data.loaders import loader_for
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.pipeline.cache import default_cache_dir
from inkmill.data.pipeline.cache_pages import Layout
from inkmill.perf.advice import Advice, Loading, Machine, Waiting, advise
from inkmill.perf.waiting import WaitingWatch

_LOOKED_AT = 64  # samples that tell whether each is a file of its own
_UNLIMITED = 1 << 62


def watch_loader(loader: DeviceLoader, dataset: DatasetSpec, ranks: int) -> WaitingWatch:
    """Return the watch of a training loader.

    Args:
        loader: as `open_loaders` gives it.
        dataset: what it was opened by.
        ranks: trainers on this machine.
    """
    at_work = CoresAtWork()

    def advised(waiting: Waiting) -> Advice:
        loading = loading_of(loader, dataset, ranks)
        return advise(waiting, loading, machine_for(loading, loader.device, dataset, at_work.since_last()))

    return WaitingWatch(loader.stats, loader.loader.workers, advised)


def loading_of(loader: DeviceLoader, dataset: DatasetSpec, ranks: int) -> Loading:
    """Return how a training loader loads; see `watch_loader`."""
    plan, who = loader.plan, loader_for(dataset.loader, dataset.cache).name
    return Loading(
        who=who,
        makers=dataset.workers if who == "dali" else loader.loader.workers,  # what feeds DALI is not for users to set
        cache=dataset.cache,
        cache_gib=dataset.cache_gib,
        store_bytes=Layout(plan.resize, len(plan.source), plan.bucket_widths, _UNLIMITED).total,
        makers_augment=plan.augmentation is not None and loader.loader.augment_on == "cpu",
        gpu_can_augment=loader.device.type == "cuda" and plan.pipeline is None and plan.resize.mode != "height",
        small_files=_small_files(plan),
        ranks=ranks,
    )


def _small_files(plan: LoadPlan) -> bool:
    some = range(0, len(plan.source), -(-len(plan.source) // _LOOKED_AT))
    return len(some) > 1 and len(plan.source.files(some)) == len(some)


def machine_for(loading: Loading, device: torch.device, dataset: DatasetSpec, cores_at_work: float) -> Machine:
    """Return what this machine has left for one trainer.

    Args:
        loading: how it loads.
        device: where it trains.
        dataset: names the folder of cached pictures.
        cores_at_work: of the whole machine, by whatever program.
    """
    cores = max(1, machine.cores() // loading.ranks)
    idle = min(cores - loading.makers - 1, int((os.cpu_count() or 1) - cores_at_work) // loading.ranks)
    ram = [size for size in (machine.memory_left(), shared.bytes_left()) if size is not None]
    folder = Path(dataset.cache_dir) if dataset.cache_dir else default_cache_dir()
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    gpu = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return Machine(cores, max(0, idle), min(ram, default=0), shutil.disk_usage(there).free, gpu)


class CoresAtWork:
    """How many of the machine's cores all its programs together keep busy."""

    def __init__(self) -> None:
        self._since, self._busy_s = perf_counter(), machine.busy_core_seconds()

    def since_last(self) -> float:
        """Return their mean number since the last call, or since the start; 0 where the system does not tell."""
        before, busy_before = self._since, self._busy_s
        self._since, self._busy_s = perf_counter(), machine.busy_core_seconds()
        if self._busy_s is None or busy_before is None:
            return 0.0
        return (self._busy_s - busy_before) / max(1e-3, self._since - before)
