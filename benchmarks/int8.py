"""One reader as several files, in float and in int8, beside one another on this machine's CPU.

    python benchmarks/int8.py DATA FILE [FILE ...] [--images 1000] [--threads 2]

DATA is a labelled set, each FILE a reader of it (.onnx or .safetensors) with one input size. Each row: words read
wholly right, strings equal to those of the first file, how far probabilities are from the first file's (largest, mean),
bytes, and images a second of `outputs` on resized pictures in batches of 1 and 32. For the speed all files take turns;
the median of the rounds is given with the lowest and highest. It runs on any CPU and takes as long as reading --images
with each file, and some seconds a file for the speed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from inkmill.config.dataset import SourceSpec
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import open_source
from inkmill.data.types import Text
from inkmill.deploy.quantize.run import READ_AT_ONCE
from inkmill.machine import machine_stamp, stamp_line
from inkmill.runtime.onnx import OnnxReader
from inkmill.runtime.reader import BaseReader
from inkmill.runtime.speed import BATCHES, images_per_second
from inkmill.runtime.torch_reader import TorchReader


def opened(path: Path, threads: int) -> BaseReader:
    """Return the reader of a file, on the CPU."""
    return OnnxReader(path, "cpu", threads=threads) if path.suffix == ".onnx" else TorchReader.load(path, "cpu")


def read(reader: BaseReader, images: NDArray[np.uint8]) -> tuple[list[str], NDArray[np.float32]]:
    """Return the texts and the probabilities of all steps."""
    starts = range(0, len(images), READ_AT_ONCE)
    batches = [images[start : start + READ_AT_ONCE] for start in starts]
    texts = [found.as_dict()["text"] for batch in batches for found in reader.predict(batch)]
    return texts, np.concatenate([probabilities for _, probabilities in batches])


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    readers = [opened(path, args.threads) for path in args.files]
    source = open_source(SourceSpec(path=args.data))
    samples = [source.get(index) for index in range(min(args.images, len(source)))]
    resize = readers[0].resize
    images = np.stack([resize.apply(decode(sample.image, resize.channels))[0] for sample in samples])
    truths = [sample.target.value if isinstance(sample.target, Text) else "" for sample in samples]
    found = [read(reader, images) for reader in readers]
    speeds = images_per_second(readers, images)
    headings = ["file", "words", "strings equal", "probabilities apart", "bytes"]
    table = Table(*headings, *(f"images/s, batch {batch}" for batch in BATCHES))
    for number, (path, (texts, probabilities)) in enumerate(zip(args.files, found, strict=True)):
        apart = np.abs(probabilities - found[0][1])
        shown = speeds[number].values()
        table.add_row(
            path.name,
            f"{np.mean([a == b for a, b in zip(texts, truths, strict=True)]):.2%}",
            f"{np.mean([a == b for a, b in zip(texts, found[0][0], strict=True)]):.2%}",
            f"{apart.max():.1e} ({apart.mean():.1e})",
            f"{path.stat().st_size:,}",
            *(f"{one['median']:,.0f} ({one['least']:,.0f}-{one['most']:,.0f})" for one in shown),
        )
    console = Console(width=160)
    console.print(table)
    console.print(f"{len(images)} pictures of {args.data}; {args.threads} threads; {stamp_line(machine_stamp())}")


if __name__ == "__main__":
    main()
