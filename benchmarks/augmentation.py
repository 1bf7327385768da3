"""How fast each engine applies an augmentation: `python benchmarks/augmentation.py [--preset scene_text]`.

Prints one JSON line a row: what, device, images a second (median of 5 rounds), the rounds' spread. `sample` makes the
parameters alone. `apply_cv` and `apply_torch` apply parameters sampled beforehand. `augment` is what training runs: it
samples and applies in one compiled pass, on a batch that is on the device (`streamed`) or on random ones of 100,000
images that the device holds (`held`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import cv2
import numpy as np

from inkmill.data.augment import Augmentation, AugmentParams, apply_cv
from inkmill.data.augment.ops import load_preset, preset_names

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
        params = augmentation.sample(0, 0, index, 32, 128)
        sample = partial(augmentation.sample, 0, 0, index, 32, 128)
        measure(f"sample {preset}", cpu, options.batch, sample, lambda: None)
        few = partial(apply_cv, images[:256], params.rows(slice(256)))
        measure(f"apply_cv {preset}", cpu, 256, few, lambda: None)
        on_gpu(preset, augmentation, images, params)


def on_gpu(preset: str, augmentation: Augmentation, images: np.ndarray, params: AugmentParams) -> None:
    """Measure the torch engine, where there is a GPU."""
    import torch

    from inkmill.data.augment.gpu import DeviceAugmenter
    from inkmill.data.augment.torch_passes import apply_torch

    if not torch.cuda.is_available():
        return
    name, count = torch.cuda.get_device_name(), len(images)
    batch = torch.from_numpy(images).cuda()
    measure(f"apply_torch {preset}", name, count, lambda: apply_torch(batch, params), torch.cuda.synchronize)
    held = batch.repeat(-(-HELD // count), 1, 1, 1)[:HELD]
    index = np.random.default_rng(0).integers(0, HELD, (64, count))
    for what, of_device in (("streamed", None), ("held", held)):
        augmenter = DeviceAugmenter(augmentation, count, batch.device, held=of_device)
        given = batch if of_device is None else None
        numbers = itertools.count()

        def work(augmenter: DeviceAugmenter, numbers: Iterator[int], given: torch.Tensor | None) -> None:
            epoch, number = divmod(next(numbers), len(index))
            augmenter(0, epoch, index[number], given)

        step = partial(work, augmenter, numbers, given)
        measure(f"augment {preset} {what}", name, count, step, torch.cuda.synchronize)


if __name__ == "__main__":
    main()
