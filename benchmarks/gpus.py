"""Images a second of `inkmill train` by the number of GPUs.

    python benchmarks/gpus.py [--images 49152] [--gpus 1,2] [--model OCRNet] [--json FILE]

Trains a model of train_speed.py (OCRNet: ResNet, 2 BiLSTM, CTC, 3x32x100, bf16, 1024 images a batch and GPU; ConvMix:
3x32x128, 2048 images) with the step of train.compile=auto, captured, on rendered JPEG word crops, streamed
from an LMDB, with the strong augmentation on the GPUs. Each count of GPUs is a run of the command in a process of its
own, with the machine's cores shared among its ranks. The figure is the median of the epochs after the first, `times
one` its ratio to the first count. It needs as many GPUs as the largest count, and takes four epochs for each count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from inkmill.bench.workload import write_crops
from inkmill.machine import cores, machine_stamp, stamp_line
from train_speed import epochs_of_the_command, models

EPOCHS = 4


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=49_152)
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--model", choices=("OCRNet", "TPS", "ConvMix"), default="OCRNet")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    counts = [int(count) for count in args.gpus.split(",")]
    if torch.cuda.device_count() < max(counts):
        print(f"{max(counts)} GPUs are asked for and {torch.cuda.device_count()} are here", file=sys.stderr)
        return 2
    model, rows = next(one for one in models(smoke=False) if one.name == args.model), []
    with tempfile.TemporaryDirectory(prefix="inkmill-gpus-") as folder:
        crops = write_crops(Path(folder) / "crops", args.images)
        for count in counts:
            settings: dict[str, Any] = {"num_gpus": count, "num_epochs": EPOCHS}
            if count == 1:
                settings["gpu_ids"] = [0]
            results = Path(folder) / f"gpus-{count}"
            speeds = epochs_of_the_command(model, crops, results, cores() // count, settings)
            speed = median(speeds)
            rows.append({"gpus": count, "images_per_s": speed, "spread": (max(speeds) - min(speeds)) / speed})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    machine = machine_stamp()
    table = Table("GPUs", "images/s", "spread", "times one", title=stamp_line(machine), title_justify="left")
    for row in rows:
        times = row["images_per_s"] / rows[0]["images_per_s"]
        table.add_row(str(row["gpus"]), f"{row['images_per_s']:,.0f}", f"{row['spread']:.1%}", f"{times:.2f}")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
