"""How fast synthetic text is drawn: its texts, its rows of numbers, its images, and all of it by the loader.

    python benchmarks/synth_speed.py [--batch-size 2048] [--seconds 4] [--fonts FOLDER ...] [--smoke]

    texts     characters of the samples, on one CPU core
    rows      the numbers that a composer draws, on the device
    H x W     images of one size from rows that lie there
    loader    everything, in the sizes of input_resize=aspect up to 32 x 256, as training asks for it; without and with
              the changes of dataset.synthetic.preset, which the device applies

A GPU is used where there is one. A figure is the median of 3 windows, its spread their range over it. `--smoke` runs
everything once with little: a test, not a measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from statistics import median
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from inkmill.config.synthetic import SyntheticSpec
from inkmill.data.augment.gpu import apply_deferred
from inkmill.data.augment.random_numbers import sample_states
from inkmill.data.loaders import LoadPlan
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Batch
from inkmill.machine import machine_stamp, stamp_line
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.device import DeviceEngine, take
from inkmill.synth.engine import Settings, open_engine
from inkmill.synth.loader import SyntheticLoader
from inkmill.synth.source import SyntheticSource

ASPECT = Resize(32, 256, 3, "aspect")
WINDOWS = 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    parser.add_argument("--fonts", nargs="*", default=[], help="folders of fonts; by default the carried ones")
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    if given.smoke:
        given.batch_size, given.seconds = 8, 0.0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = Settings(SyntheticSpec(fonts=given.fonts), CHARACTERS, 48)
    table = Table("what", "a second", "spread", title=stamp_line(machine_stamp()))
    for name, speed, spread in measured(settings, device, given.batch_size, given.seconds):
        table.add_row(name, f"{speed:,.0f}", f"{spread:.0%}")
    Console().print(table)


def measured(
    settings: Settings, device: torch.device, batch_size: int, seconds: float
) -> Iterator[tuple[str, float, float]]:
    """Yield what was measured: its name, samples a second, spread."""
    engine = open_engine(settings)
    drawer = DeviceEngine(engine, device)
    states = sample_states(0, 0, np.arange(8 * batch_size))
    codes = engine.codes(states)
    yield "texts", *speed_of(lambda: engine.codes(states), len(states), seconds, device)
    yield "rows", *speed_of(lambda: drawer.rows(states, *codes), len(states), seconds, device)
    rows = take(drawer.rows(states, *codes), np.arange(batch_size))
    for height, width in ASPECT.sizes():
        run = images_of(drawer, rows, (height, width))
        yield f"{height} x {width}", *speed_of(run, batch_size, seconds, device)
    for preset in (None, settings.spec.preset):
        changed = replace(settings, spec=settings.spec.model_copy(update={"preset": preset}))
        plan = LoadPlan(SyntheticSource(changed, 10**6, 0), ASPECT, batch_size=batch_size)
        with SyntheticLoader(plan, device) as loader:
            batches = chain.from_iterable(repeat(DeviceLoader(loader, device)))
            warm_up(batches, set(loader.sizes))
            name = "loader" if preset is None else "loader, with changes"
            yield name, *speed_of(next_of(batches), batch_size, seconds, device)


def images_of(drawer: DeviceEngine, rows: object, size: tuple[int, int]) -> Callable[[], object]:
    """Return what draws images of one size."""
    return lambda: drawer.images(rows, size, 3)  # type: ignore[arg-type]


def next_of(batches: Iterator[Batch]) -> Callable[[], object]:
    """Return what asks for a batch."""
    return lambda: augmented(next(batches))


def warm_up(batches: Iterator[Batch], sizes: set[tuple[int, int]]) -> None:
    """Ask for batches until each size has come, and been compiled."""
    while sizes:
        images = augmented(next(batches))
        sizes.discard((images.shape[1], images.shape[2]))


def augmented(batch: Batch) -> torch.Tensor:
    """Return the images of a batch as a model gets them."""
    images: torch.Tensor = batch.images
    return images if batch.augmentation is None else apply_deferred(images, batch.augmentation)


def speed_of(run: Callable[[], object], samples: int, seconds: float, device: torch.device) -> tuple[float, float]:
    """Return samples a second, the median of some windows, and their spread."""
    speeds = []
    for _ in range(WINDOWS):
        count, began = 0, now(device)
        while not count or perf_counter() - began < seconds:
            run()
            count += samples
        speeds.append(count / (now(device) - began))
    return median(speeds), (max(speeds) - min(speeds)) / median(speeds)


def now(device: torch.device) -> float:
    """Return the time when the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


if __name__ == "__main__":
    main()
