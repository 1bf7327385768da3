"""Crops with targets a second: whole pictures by inkmill's loaders, maps on the device, beside maps made in workers.

    python benchmarks/detection_loaders.py PATH [--workers 14] [--batch-size 64] [--seconds 5] [--copies 1] [--smoke]

    held       all pictures on the GPU; crop, warp, colour and maps there
    RAM, GPU   kept pictures from the RAM tier, warped on the GPU
    RAM, CPU   kept pictures from the RAM tier, warped by workers; maps on the device
    streamed   decoded anew in each epoch, warped on the GPU
    peers      torch's DataLoader: decode, crop and resize by OpenCV, DB's shrink and threshold maps by pyclipper and
               OpenCV in the workers, as DB, MMOCR and PaddleOCR have it (only the arithmetic; none of their code)

All give 640 x 640 crops of the same set with all maps on the device. A figure is the median of 3 windows, its spread
their range over it. Without a GPU the first, second and fourth are left out. `--copies` repeats a small set.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from inkmill.config.dataset import AugmentationSpec, SourceSpec
from inkmill.config.model import ModelSpec
from inkmill.data.augment import Augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.pages import PageResize
from inkmill.data.sources import Concat, Source, open_source
from inkmill.data.types import Polygons
from inkmill.machine import machine_stamp, stamp_line
from inkmill.tasks.detection.model import maps_on_cpu, maps_on_gpu
from inkmill.tasks.detection.task import Detection
from inkmill.training.batches import augmented_images

WINDOWS = 3
SHRINK = 0.4
OPS: list[dict[str, Any]] = [
    {"op": "crop", "scale": [0.5, 2]},
    {"op": "rotate", "degrees": 10},
    {"op": "brightness"},
    {"op": "contrast"},
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="a set of text regions, in any format")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    if given.smoke:
        given.batch_size, given.seconds, given.workers, given.size = 2, 0.0, 1, 64
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    one = open_source(SourceSpec(path=given.path))
    source = Concat([one] * given.copies) if given.copies > 1 else one
    table = Table("pictures", "crops/s", "spread", title=stamp_line(machine_stamp()))
    for name, batches in cases(source, device, given):
        with closing(batches) as several:
            speed, spread = measured(several, device, given.seconds)
        table.add_row(name, f"{speed:,.0f}", f"{spread:.0%}")
    Console().print(table)


def cases(source: Source, device: torch.device, given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield a name and the sizes of batches for ever, of each way."""
    augmentation = Augmentation.from_spec(AugmentationSpec(ops=OPS)).for_windows()
    size = (given.size, given.size)
    plan = LoadPlan(source, PageResize(736, 1536, 3), augmentation, given.batch_size, window=size)
    ram = replace(plan, cache=CacheConfig("ram", 64.0))
    if device.type == "cuda":
        yield "held", ours(plan, "resident", "gpu", device, given.workers)
        yield "RAM, GPU", ours(ram, "workers", "gpu", device, given.workers)
    yield "RAM, CPU", ours(ram, "workers", "cpu", device, given.workers)
    if device.type == "cuda":
        yield "streamed", ours(plan, "workers", "gpu", device, given.workers)
    yield "peers", peers(source, device, given)


def ours(plan: LoadPlan, kind: str, augment_on: Any, device: torch.device, workers: int) -> Iterator[int]:
    """Yield the sizes of inkmill's batches, images and maps on the device."""
    task = Detection(ModelSpec(backbone="tiny", input_channel=3))
    maps = maps_on_gpu if device.type == "cuda" else maps_on_cpu
    with DeviceLoader(make_loader(plan, workers, kind, augment_on=augment_on, device=device), device) as loader:
        while True:
            for batch in loader:
                images = augmented_images(batch)
                size = (images.shape[1], images.shape[2])
                maps(task.encode(batch.targets), batch.matrix, size, task.map_options, device)
                yield len(batch)


class CropsWithMaps(torch.utils.data.Dataset[tuple[NDArray[np.uint8], NDArray[np.float32]]]):
    """One crop with DB's maps, made as its peers do: one at a time, on the CPU."""

    def __init__(self, source: Source, size: int) -> None:
        self.source, self.size = source, size

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        sample, rng = self.source.get(index), np.random.default_rng()
        image = decode(sample.image, 3)
        # 1. A part, at a scale even in its logarithm, as a resize and a crop.
        scale = float(np.exp(rng.uniform(np.log(0.5), np.log(2))))
        side = self.size / scale
        left, top = (rng.uniform(0, max(1.0, length - side)) for length in image.shape[1::-1])
        part = image[int(top) : int(top + side), int(left) : int(left + side)]
        shape = [max(1, min(self.size, round(length * scale))) for length in part.shape[1::-1]]
        crop = np.zeros((self.size, self.size, 3), np.uint8)
        crop[: shape[1], : shape[0]] = cv2.resize(part, shape)
        # 2. Its regions, and their maps.
        assert isinstance(sample.target, Polygons)
        moved = [(points - (left, top)) * scale for points in sample.target.points]
        return crop, db_maps(moved, sample.target.ignore, self.size)


def db_maps(regions: list[NDArray[Any]], ignore: tuple[bool, ...], size: int) -> NDArray[np.float32]:
    """Return DB's four planes (4, size, size): shrunk text, its mask, threshold, its mask (Liao et al. 2020)."""
    import pyclipper

    shrunk, counted = np.zeros((size, size), np.float32), np.ones((size, size), np.float32)
    threshold, grown_mask = np.zeros((size, size), np.float32), np.zeros((size, size), np.float32)
    for points, skip in zip(regions, ignore, strict=True):
        corners = np.clip(points, 0, size - 1)
        area, length = abs(cv2.contourArea(corners.astype(np.float32))), cv2.arcLength(corners.astype(np.float32), True)
        if skip or area < 1 or min(np.ptp(corners, axis=0)) < 8:
            cv2.fillPoly(counted, [corners.astype(np.int32)], 0)
            continue
        distance = area * (1 - SHRINK**2) / length
        clipper = pyclipper.PyclipperOffset()
        clipper.AddPath(corners.astype(np.int64).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        for inner in clipper.Execute(-distance):
            cv2.fillPoly(shrunk, [np.array(inner, np.int32)], 1)
        for outer in clipper.Execute(distance):
            grown = np.array(outer, np.int32)
            cv2.fillPoly(grown_mask, [grown], 1)
            low, high = np.clip(grown.min(axis=0), 0, size - 1), np.clip(grown.max(axis=0), 0, size - 1)
            here = np.s_[low[1] : high[1] + 1, low[0] : high[0] + 1]
            near = 1 - np.clip(_distances(corners - low, high - low + 1) / distance, 0, 1)
            threshold[here] = np.maximum(threshold[here], near)
    return np.stack([shrunk, counted, 0.3 + 0.4 * threshold, grown_mask])


def _distances(corners: NDArray[Any], sides: NDArray[Any]) -> NDArray[np.float32]:
    """Return how far each pixel of a box is from the nearest edge: (rows, columns)."""
    x, y = np.meshgrid(np.arange(sides[0], dtype=np.float32), np.arange(sides[1], dtype=np.float32))
    nearest = np.full(x.shape, np.inf, np.float32)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        dx, dy = bx - ax, by - ay
        along = np.clip(((x - ax) * dx + (y - ay) * dy) / max(dx * dx + dy * dy, 1e-9), 0, 1)
        nearest = np.minimum(nearest, np.hypot(x - ax - along * dx, y - ay - along * dy))
    return nearest


def peers(source: Source, device: torch.device, given: argparse.Namespace) -> Iterator[int]:
    """Yield the sizes of DataLoader's batches, images and maps on the device; nothing where pyclipper is missing."""
    try:
        import pyclipper  # noqa: F401
    except ImportError:
        Console().print("pyclipper is not installed: maps in workers are left out")
        return
    loader = torch.utils.data.DataLoader(
        CropsWithMaps(source, given.size),
        given.batch_size,
        shuffle=True,
        num_workers=given.workers,
        persistent_workers=given.workers > 0,
        pin_memory=device.type == "cuda",
        worker_init_fn=_one_thread,
    )
    while True:
        for images, maps in loader:
            images.to(device, non_blocking=True)
            maps.to(device, non_blocking=True)
            yield len(images)


def _one_thread(number: int) -> None:
    cv2.setNumThreads(0)


def measured(batches: Iterator[int], device: torch.device, seconds: float) -> tuple[float, float]:
    """Return crops a second and the spread, after what fills caches and compiles: the first window and an epoch."""
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    speeds = []
    for number in range(WINDOWS + 2):
        count, began = 0, perf_counter()
        for some in batches:
            count += some
            if perf_counter() - began > seconds:
                break
        wait()
        if number >= 2:
            speeds.append(count / (perf_counter() - began))
    middle = median(speeds)
    return middle, (max(speeds) - min(speeds)) / middle if middle else 0.0


if __name__ == "__main__":
    main()
