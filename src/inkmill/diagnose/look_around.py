"""The facts that a plan needs beside measured stages: room for cached pictures, cores, how loaders scale, DALI."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch

from inkmill import shared_memory as shared
from inkmill.config.dataset import DatasetSpec
from inkmill.data.loaders import AugmentOn, LoadPlan, make_loader
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.dali import has_dali
from inkmill.data.pipeline.cache import CacheConfig, default_cache_dir
from inkmill.diagnose.cold import drop
from inkmill.diagnose.facts import Stages, Tier
from inkmill.errors import InkmillError
from inkmill.machine import cores, memory_left

_OF_MEMORY = 0.75  # the rest is for batches on their way and for others
_OF_DISK = 0.8
_OF_GPU = 0.7  # the rest is for the step
_ROUND_S = 0.2  # that all workers make a batch in, about


def room(dataset: DatasetSpec, device: torch.device) -> dict[Tier, int]:
    """Return how many bytes of cached pictures each tier can hold, the spec's cache_gib included."""
    most = int(dataset.cache_gib * 2**30)
    memory = [left for left in (shared.bytes_left(), memory_left()) if left is not None]
    folder = Path(dataset.cache_dir) if dataset.cache_dir else default_cache_dir()
    while not folder.exists():
        folder = folder.parent
    found: dict[Tier, int] = {
        "ram": min(most, int(_OF_MEMORY * min(memory, default=0))),
        "disk": min(most, int(_OF_DISK * shutil.disk_usage(folder).free)),
    }
    if device.type == "cuda":
        found["gpu"] = int(_OF_GPU * torch.cuda.mem_get_info(device)[0])
    return found


def measure_workers(
    plan: LoadPlan, stages: Stages, seconds: float, cold: bool, augment_on: AugmentOn = "cpu"
) -> tuple[float, float | None]:
    """Measure worker processes, one on each core, from the page cache and, if `cold`, from the disk.

    Returns:
        What a worker does then, as a share of what it would do alone; and how long an image that is read from the disk
        has it wait, which several that read at a time cause each other; None where that was not measured.
    """
    count = cores()
    work = stages.fresh + stages.other + (stages.draw + stages.augment if augment_on == "cpu" else 0.0)
    # Small batches, for the sample holds several rounds of all workers, and a round of a slow disk is short.
    size = min(plan.batch_size, len(plan.source) // (4 * count), int(_ROUND_S / (work + stages.wait)))
    efficiency, wait = 1.0, None
    if count == 1 and not cold:
        return efficiency, wait
    plan = replace(plan, cache=CacheConfig(), batch_size=max(1, size))
    with closing(make_loader(plan, count, augment_on=augment_on)) as loader:
        if count > 1:
            efficiency = min(1.0, max(0.1, _rate(loader, 2 * count, seconds) * work / count))
        if cold and (rate := _cold_rate(loader, seconds)) is not None:
            wait = max(0.0, count / rate - (work + stages.fetch) / efficiency)
    return efficiency, wait


def measure_dali(plan: LoadPlan, device: torch.device, seconds: float) -> tuple[dict[str, float], list[str]]:
    """Return the images a second that DALI makes by itself, by decode_on, and notes about what did not run.

    It decodes and fits; augmentation is left to the torch engine, as in training.
    """
    plan = replace(plan, cache=CacheConfig())
    if device.type != "cuda" or not has_dali() or plan.pipeline is not None or plan.resize.mode == "height":
        return {}, []
    found: dict[str, float] = {}
    notes = []
    places: tuple[Literal["cpu", "mixed"], ...] = ("cpu", "mixed")
    for decode_on in places:
        try:
            loader = make_loader(plan, cores(), "dali", augment_on="gpu", device=device, decode_on=decode_on)
            with closing(loader):
                found[decode_on] = _rate(loader, 8, seconds)
        except (InkmillError, RuntimeError) as error:
            notes.append(f"loader=dali decode_on={decode_on} was not tried: {error}")
    return found, notes


def _rate(loader: Loader, skipped: int, seconds: float) -> float:
    """Return images a second when nobody holds the loader up."""
    images, number, began = 0, 0, perf_counter()
    while True:
        for batch in loader.views():
            number += 1
            if number == skipped:
                images, began = 0, perf_counter()
                continue
            images += len(batch)
            if number > skipped and perf_counter() - began > seconds:
                if loader.memory is None:
                    torch.cuda.synchronize()
                return images / (perf_counter() - began)


def _cold_rate(loader: Loader, seconds: float) -> float | None:
    """Return images a second of part of an epoch that is read from the disk, in whole rounds of the workers."""
    source, makers = loader.plan.source, max(1, loader.workers)
    loader.release()
    if len(loader) <= makers or not drop(source, range(len(source))).cold:
        return None
    loader.set_epoch(loader.epoch + 1)
    with closing(loader.views()) as batches:  # type: ignore[type-var]
        for _ in range(1 + (len(loader) - 1) % makers):
            next(batches)
        began, images = perf_counter(), 0
        for number, batch in enumerate(batches, 1):
            images += len(batch)
            if number % makers == 0 and perf_counter() - began > seconds:
                break
        return images / (perf_counter() - began)
