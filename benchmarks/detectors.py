"""Text detectors side by side on labelled pages: h-mean, and milliseconds of the network on one CPU thread.

    python benchmarks/detectors.py FOLDER... --ours detector.onnx --paddle PP-OCRv6_det_small.onnx

Each detector reads every picture as its own package does. The networks are timed in turn on the same random input of
one size, so that what else the machine does falls on both; the seconds are those of the process, not of the clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from inkmill.config.dataset import SourceSpec
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import Source, open_source
from inkmill.data.types import Polygons
from inkmill.machine import machine_stamp, stamp_line
from inkmill.pages.models import LineDetector
from inkmill.pages.paddle import PaddleDetector
from inkmill.runtime import Detector
from inkmill.tasks.detection.metrics import DetectionScores, score

SIZES = ((640, 640), (736, 1280))
"""Rows and columns of the timed input."""


def scores_of(detector: LineDetector, source: Source, most: int) -> DetectionScores:
    """Return the scores of a detector on up to `most` pictures of a set, evenly spread."""
    truths, found = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).astype(int)).tolist():
        target = source.target(index)
        assert isinstance(target, Polygons)
        truths.append(target)
        (regions,) = detector.detect([decode(source.image(index), 3)])
        found.append([region.points for region in regions])
    return score(truths, found)


def milliseconds(files: Sequence[Path], rows: int, columns: int, rounds: int) -> list[tuple[float, float]]:
    """Return median and least milliseconds of one thread for each ONNX file, in turn."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"]) for file in files]
    image = np.random.default_rng(0).uniform(-1, 1, (1, 3, rows, columns)).astype(np.float32)
    took: list[list[float]] = [[] for _ in files]
    for _ in range(rounds + 1):
        for session, some in zip(sessions, took, strict=True):
            began = time.process_time()
            session.run(None, {session.get_inputs()[0].name: image})
            some.append(1e3 * (time.process_time() - began))
    kept: list[NDArray[np.float64]] = [np.array(some[1:]) for some in took]  # the first reserves memory
    return [(float(np.median(some)), float(some.min())) for some in kept]


def main() -> None:
    """Compare detectors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="sets with regions, in any format that `inkmill check` knows")
    parser.add_argument("--ours", type=Path, nargs="+", required=True)
    parser.add_argument("--paddle", type=Path, nargs="*", default=[])
    parser.add_argument("--most", type=int, default=1000, help="pictures of each set")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    files = [*args.ours, *args.paddle]
    detectors: list[LineDetector] = [
        *(Detector(file, "cpu") for file in args.ours),
        *(PaddleDetector(file, "cpu") for file in args.paddle),
    ]
    sources = [open_source(SourceSpec(path=path)) for path in args.data]
    headings = [f"{one.name} {figure}" for one in sources for figure in ("h", "h at .7", "CLEval")]
    table = Table("file", "bytes", *headings, *(f"ms at {rows}x{columns}" for rows, columns in SIZES))
    timed = [milliseconds(files, *size, args.rounds) for size in SIZES]
    for number, (file, detector) in enumerate(zip(files, detectors, strict=True)):
        found = [scores_of(detector, source, args.most) for source in sources]
        figures = [f"{value:.3f}" for one in found for value in (one.hmean, one.hmean_iou70, one.cleval)]
        speeds = [f"{size[number][0]:.0f} (least {size[number][1]:.0f})" for size in timed]
        table.add_row(file.name, f"{file.stat().st_size:,}", *figures, *speeds)
    console = Console(width=200)
    console.print(table)
    console.print(stamp_line(machine_stamp()))


if __name__ == "__main__":
    main()
