"""The full comparison of loaders: inkmill's, the classic torch DataLoader, and every other library that is installed.

    python benchmarks/loaders.py [PATH] [--workers N] [--only NAME,...] [--json FILE] [--chart FILE] [--smoke]

The measurement of `inkmill bench loaders`, with the loaders of benchmarks/peers/ (Albumentations, WebDataset, DALI,
LitData, SPDL; a package that is not installed costs its own row alone), with DALI decoding on the GPU, and a chart. It
runs on any machine, with or without a GPU. A case takes its seconds plus a warm-up: about four minutes for all of them
on two cores. `--smoke` runs everything once on 64 images: a test, not a measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from inkmill.bench.cases import AUGMENTS, Augment, BenchmarkCase, loader_case
from inkmill.bench.run import BenchRow, BenchSettings, as_json, as_table, default_cases, default_device, run
from inkmill.data.loaders import LOADERS
from inkmill.machine import cores, machine_stamp, stamp_line
from peers import peer_cases


def all_cases() -> list[BenchmarkCase]:
    """Return the baseline and the peers, then inkmill's loaders."""
    default = default_cases()
    peers = [case for augment in AUGMENTS for case in peer_cases(augment)]
    on_gpu = [case for augment in AUGMENTS for case in _dali_decoding_on_the_gpu(augment)]
    return [case for case in default if not case.ours] + peers + [case for case in default if case.ours] + on_gpu


def _dali_decoding_on_the_gpu(augment: Augment) -> list[BenchmarkCase]:
    # The registry knows which options a loader has, not which of their values are worth a row.
    info, note = LOADERS["dali"], "JPEG decoded on the GPU"
    return [loader_case(info, "none", "gpu", augment, note, decode_on="mixed")]


def write_chart(path: Path, rows: Sequence[BenchRow], title: str) -> None:
    """Draw the rows as horizontal bars on a logarithmic axis, fastest first; the format follows the suffix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = [(augment, ran) for augment in reversed(AUGMENTS) if (ran := _fastest_first(rows, augment))]
    heights = [len(group) for _, group in groups] or [1]
    figure = Figure(figsize=(10, 1.6 + 0.3 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=9)
    panels = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True, squeeze=False)[:, 0]
    for axes, (augment, group) in zip(panels, groups, strict=False):  # no row that ran: one empty panel
        _draw_bars(axes, group)
        axes.set_title(f"augmentation: {augment}", fontsize=9, loc="left")
    panels[-1].set_xlabel("images per second")
    figure.savefig(path, dpi=130)


def _fastest_first(rows: Sequence[BenchRow], augment: str) -> list[BenchRow]:
    ran = [row for row in rows if row.augment == augment and row.images_per_s]
    return sorted(ran, key=lambda row: -(row.images_per_s or 0))


def _draw_bars(axes: Any, rows: Sequence[BenchRow]) -> None:
    names = [" · ".join((r.loader, r.engine, *(() if r.cache == "none" else (f"cache: {r.cache}",)))) for r in rows]
    places, speeds = range(len(rows)), [row.images_per_s for row in rows]
    errors = [(row.images_per_s or 0) * (row.spread or 0) / 2 for row in rows]
    colours = ["#1f6f8b" if row.ours else "#b0b7bd" for row in rows]
    bars = axes.barh(places, speeds, xerr=errors, color=colours, error_kw={"linewidth": 0.8})
    axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=4, fontsize=8)
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> int:
    """Measure and print; return 1 where a case failed that should have run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", help="your data; without it JPEG word crops are rendered")
    parser.add_argument("--images", type=int, default=20_000, help="how many crops to render")
    parser.add_argument("--seconds", type=float, default=5.0, help="measuring time a case")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--only", default="", metavar="NAME,...", help="only these loaders or engines")
    parser.add_argument("--augment", choices=AUGMENTS, help="only the cases with this augmentation")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path, help="also draw the rows as a bar chart (PNG)")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.images, args.seconds, args.workers, args.batch_size = 64, 0.01, 0, 16
    only = tuple(filter(None, args.only.split(",")))
    settings = BenchSettings(
        args.path, args.images, args.seconds, args.workers, args.batch_size, only, default_device(), args.augment
    )
    machine = machine_stamp()  # before the run, whose own load it would show
    rows = []
    for row in run(settings, all_cases()):
        rows.append(row)
        print(f"{row.loader}, {row.engine}, cache {row.cache}: {row.images_per_s or row.note}", file=sys.stderr)
        if args.json:  # after each row: a run of minutes may be interrupted
            args.json.write_text(json.dumps(as_json(rows, settings, machine), indent=1), encoding="utf-8")
    title = f"{stamp_line(machine)}; {settings.workers} workers, batches of {settings.batch_size}"
    Console().print(as_table(rows, title))
    if args.chart:
        write_chart(args.chart, rows, title)
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
