"""Reading word crops on this machine's CPU: an exported reader beside RapidOCR's recogniser and Tesseract, in one run.

    python benchmarks/readers.py reader.onnx DATA [--images 500] [--threads 2] [--json FILE]

Each gets the same encoded files and is called as its own documentation says: RapidOCR with `use_det=False,
use_cls=False` for one image and its recogniser with a list of them for many (pip install rapidocr-onnxruntime),
Tesseract as a command with `--psm 8` (a single word), for many images by a list of files. What is not installed is left
out with a word. Rounds of all readers alternate; the table gives the median round, its range, and how many words
were read wholly right, capitals told apart or not. The others know thousands of characters and any text; a reader
trained on DATA's kind knows that kind, so the words say what was read, not who is better. It runs on any CPU; Tesseract
starts a process for each image, which is most of the time that the command takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from inkmill.config.dataset import SourceSpec
from inkmill.data.sources import open_source
from inkmill.data.types import Text
from inkmill.machine import machine_stamp, stamp_line
from inkmill.runtime import Reader

Read = Callable[[], list[str]]


def contestants(model: str, images: list[bytes], folder: Path, threads: int) -> Iterator[tuple[str, Read]]:
    """Yield names and functions that read all the images."""
    reader = Reader(model, "cpu", threads=threads)
    yield "inkmill, one by one", lambda: [reader.read(image)[0].text for image in images]
    yield f"inkmill, batches of {reader.batch_size}", lambda: [reading.text for reading in reader.read(images)]
    try:
        from rapidocr_onnxruntime import RapidOCR
    except ImportError:
        print("RapidOCR is not installed: pip install rapidocr-onnxruntime", file=sys.stderr)
    else:
        engine = RapidOCR(text_score=0, intra_op_num_threads=threads)
        only_read = {"use_det": False, "use_cls": False, "use_rec": True}
        yield "RapidOCR, one by one", lambda: [(engine(image, **only_read)[0] or [[""]])[0][0] for image in images]
        yield "RapidOCR, its batches", lambda: [text for text, _ in engine.text_rec(list(map(decoded, images)))[0]]
    if shutil.which("tesseract") is None:
        print("Tesseract is not installed", file=sys.stderr)
        return
    paths = []
    for number, image in enumerate(images):
        paths.append(folder / f"{number:06d}.png")
        cv2.imwrite(str(paths[-1]), decoded(image))
    listed = folder / "list.txt"
    listed.write_text("\n".join(map(str, paths)) + "\n", encoding="utf-8")
    some = paths[:50]  # a process for each image
    yield "Tesseract, one by one", lambda: [tesseract(path)[0] for path in some]
    yield "Tesseract, a list", lambda: tesseract(listed)


def decoded(image: bytes) -> Any:
    """Return an image as OpenCV has it."""
    return cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)


def tesseract(path: Path) -> list[str]:
    """Return what Tesseract reads in a file, or in each file of a list; pages end with a form feed."""
    done = subprocess.run(["tesseract", str(path), "stdout", "--psm", "8"], capture_output=True, text=True, check=True)
    return [page.strip() for page in done.stdout.split("\f")][: max(1, done.stdout.count("\f"))]


def measure(read: Read) -> tuple[float, list[str]]:
    """Return images a second of one round, and what was read."""
    start = perf_counter()
    texts = read()
    return len(texts) / (perf_counter() - start), texts


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    machine, source = machine_stamp(), open_source(SourceSpec(path=args.data))
    chosen = np.linspace(0, len(source) - 1, min(args.images, len(source))).astype(int).tolist()
    samples = [source.get(row) for row in chosen]
    truths = [sample.target.value if isinstance(sample.target, Text) else "" for sample in samples]
    with tempfile.TemporaryDirectory(prefix="inkmill-readers-") as folder:
        readers = dict(contestants(args.model, [sample.image for sample in samples], Path(folder), args.threads))
        found = {name: measure(read)[1] for name, read in readers.items()}  # warm-up
        speeds: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(args.rounds):
            for name, read in readers.items():
                speeds[name].append(measure(read)[0])
    rows = [row_of(name, speeds[name], found[name], truths) for name in readers]
    show(rows, f"{stamp_line(machine)}; {len(samples)} crops, {args.threads} threads")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


def row_of(name: str, speeds: list[float], texts: list[str], truths: list[str]) -> dict[str, Any]:
    """Return a line of the table."""
    middle, pairs = median(speeds), list(zip(texts, truths, strict=False))
    return {
        "reader": name,
        "images_per_s": round(middle, 1),
        "spread": round((max(speeds) - min(speeds)) / middle, 3),
        "words_right": round(sum(text == truth for text, truth in pairs) / len(pairs), 4),
        "words_right_any_case": round(sum(text.lower() == truth.lower() for text, truth in pairs) / len(pairs), 4),
    }


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print the table."""
    table = Table("reader", "images/s", "spread", "words right", "in any case", title=title, title_justify="left")
    for row in rows:
        shares = f"{row['words_right']:.1%}", f"{row['words_right_any_case']:.1%}"
        table.add_row(row["reader"], f"{row['images_per_s']:,.1f}", f"{row['spread']:.0%}", *shares)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
