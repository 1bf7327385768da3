"""What int8 gained and cost: equal strings, word accuracy, size and images a second, before and after, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from inkmill.runtime.reader import BaseReader
from inkmill.runtime.speed import BATCHES, ROUNDS

READ_AT_ONCE = 64


def read_all(reader: BaseReader, images: NDArray[np.uint8]) -> list[str]:
    """Return the texts of resized uint8 images (N, H, W, C)."""
    batches = (images[start : start + READ_AT_ONCE] for start in range(0, len(images), READ_AT_ONCE))
    return [text for batch in batches for text in reader.texts(batch)[0]]


def share_equal(texts: Sequence[str], others: Sequence[str]) -> float:
    """Return the share of pairs that are equal, in 0..1."""
    return sum(a == b for a, b in zip(texts, others, strict=True)) / len(texts)


def drop(before: Sequence[str], after: Sequence[str], truths: Sequence[str] | None) -> float:
    """Return what was lost, in 0..1: word accuracy where it is known what the pictures say, else equal strings."""
    # Counted and divided once: a loss of 1 in 100 is 0.01 then, and not a little more than the bound.
    truths = before if truths is None else truths
    lost = sum((old == truth) - (new == truth) for old, new, truth in zip(before, after, truths, strict=True))
    return lost / len(before)


def show(console: Console, report: dict[str, Any]) -> None:
    """Print the figures before and after as a table, and which layers stay in float."""
    before, after = report["before"], report["after"]
    table = Table("", title=None)
    for heading in ("float", "int8", "int8 / float"):
        table.add_column(heading, justify="right")
    table.add_row("strings equal", "", f"{report['strings_equal']:.2%}", "")
    if before["word_accuracy"] is not None:
        table.add_row("word accuracy", *(f"{side['word_accuracy']:.2%}" for side in (before, after)), "")
    sizes = before["bytes"], after["bytes"]
    table.add_row("file", *(f"{size / 2**20:.2f} MiB" for size in sizes), f"{sizes[1] / sizes[0]:.2f}")
    for batch in BATCHES:
        both = [side["images_per_second"][f"batch_{batch}"] for side in (before, after)]
        shown = [f"{speed['median']:,.0f} ({speed['least']:,.0f}-{speed['most']:,.0f})" for speed in both]
        table.add_row(f"images/s, batch {batch}", *shown, f"{both[1]['median'] / both[0]['median']:.2f}")
    console.print(table)
    layers, checked, calibration = report["layers"], report["checked"], report["calibration"]
    for line in (
        f"{len(layers['int8'])} layers in int8, {len(layers['float'])} left in float"
        + (f": {', '.join(layers['float'])}" if layers["float"] else ""),
        f"compared on {_told(checked)}; ranges of {_told(calibration)}",
        f"images/s on {report['device']}, median of {ROUNDS} rounds in turn (least-most)",
    ):
        console.print(line, highlight=False, markup=False)


def _told(pictures: dict[str, Any]) -> str:
    lost = f" ({pictures['skipped']:,} could not be decoded)" if pictures["skipped"] else ""
    return f"{pictures['count']:,} pictures of {pictures['name']}{lost}"
