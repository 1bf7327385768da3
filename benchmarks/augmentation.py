"""How fast each engine applies an augmentation: `python benchmarks/augmentation.py [--preset scene_text]`.

Prints one JSON line a row: what, device, images a second (median of 5 rounds), the rounds' spread. The rows of
`apply_torch` keep the batch on the device and draw the tables beforehand; `draw` is timed by
itself. `augment_torch` does all of it from 100,000 pictures on the device: fetches random ones, draws, applies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np

from inkmill.data.augment import Augmentation, AugmentParams, apply_cv
from inkmill.data.augment.spec import load_preset, preset_names

HELD = 100_000


def measure(what: str, device: str, images: int, work: Callable[[], object], finish: Callable[[], object]) -> None:
    """Time `work` five times for half a second each, and print the row."""
    work()
    finish()
    speeds = []
    for _ in range(5):
        start, rounds = time.perf_counter(), 0
        while time.perf_counter() - start < 0.5:
            for _ in range(4):
                work()
            rounds += 4
            finish()
        speeds.append(rounds * images / (time.perf_counter() - start))
    row = {"what": what, "device": device, "images_per_s": round(statistics.median(speeds))}
    print(json.dumps(row | {"low": round(min(speeds)), "high": round(max(speeds))}), flush=True)


def main() -> None:
    """Measure every engine on every preset asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=preset_names(), action="append")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--channels", type=int, default=3, choices=(1, 3))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    images = np.random.default_rng(0).integers(0, 256, (options.batch, 32, 128, options.channels), np.uint8)
    index = np.arange(options.batch)
    cpu = f"{platform.processor() or platform.machine()}, 1 core"
    for preset in options.preset or preset_names():
        augmentation = Augmentation(load_preset(preset))
        table = augmentation.draw(0, 0, index, 32, 128)
        measure(f"draw {preset}", cpu, options.batch, partial(augmentation.draw, 0, 0, index, 32, 128), lambda: None)
        few = partial(apply_cv, images[:256], table.rows(slice(256)))
        measure(f"apply_cv {preset}", cpu, 256, few, lambda: None)
        on_gpu(f"apply_torch {preset}", images, table)
        from_device_memory(f"augment_torch {preset}", augmentation, images)


def on_gpu(what: str, images: np.ndarray, table: AugmentParams) -> None:
    """Measure the torch engine, compiled and not, where there is a GPU."""
    import torch

    from inkmill.data.augment.table_torch import apply_torch

    if not torch.cuda.is_available():
        return
    batch = torch.from_numpy(images).cuda()
    name = torch.cuda.get_device_name()
    measure(what, name, len(images), lambda: apply_torch(batch, table), torch.cuda.synchronize)
    measure(
        f"{what} eager", name, len(images), lambda: apply_torch(batch, table, compiled=False), torch.cuda.synchronize
    )


def from_device_memory(what: str, augmentation: Augmentation, images: np.ndarray) -> None:
    """Measure batches of pictures that a GPU holds, where there is one."""
    import torch

    from inkmill.data.augment.augment_torch import DrawingPass

    if not torch.cuda.is_available():
        return
    held = torch.from_numpy(images).cuda().repeat(-(-HELD // len(images)), 1, 1, 1)[:HELD]
    augment = DrawingPass(augmentation, len(images), held.device, held=held)
    index = np.random.default_rng(0).integers(0, HELD, (64, len(images)))
    batches = itertools.count()

    def work() -> torch.Tensor:
        epoch, number = divmod(next(batches), len(index))
        return augment(0, epoch, index[number])

    measure(what, torch.cuda.get_device_name(), len(images), work, torch.cuda.synchronize)


if __name__ == "__main__":
    main()
