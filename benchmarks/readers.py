"""Reading word crops on one CPU thread: a reader of inkmill beside RapidOCR's and Tesseract's, on the same files.

    python benchmarks/readers.py words/ more_words/ [--model reader.onnx] [--images 500] [--rapidocr /venv/bin/python]

Each gets the encoded files and is called as its own documentation says: inkmill's reader image by image, RapidOCR with
`use_det=False, use_cls=False` (pip install rapidocr, in an environment of its own, whose Python is given), Tesseract as
a command with `--psm 8` (a single word) and a list of files. What is not there is left out with a word. Without --model
the reader that the package carries reads.

The table gives words wholly right, words right in 36 characters (a-z and 0-9, capitals as small letters, all else left
out: the usual protocol of scene text), the character error rate, and milliseconds a word, the median of the rounds.
Tesseract is made for documents, and knows the languages that are installed (`eng` here).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from inkmill.config.dataset import SourceSpec
from inkmill.data.sources import Source, open_source
from inkmill.data.types import Text
from inkmill.machine import machine_stamp, stamp_line
from inkmill.runtime import Reader
from inkmill.tasks.recognition.metrics import score

RAPIDOCR = Path(__file__).parent / "peers" / "rapidocr_words.py"


@dataclass
class Found:
    """What one reader read, and how long each round over all files took."""

    reader: str
    texts: list[str]
    seconds: list[float]


def contestants(files: list[Path], args: argparse.Namespace) -> Iterator[Found]:
    """Yield what each reader read in all the files."""
    yield inkmill(files, args)
    if args.rapidocr is None:
        print("RapidOCR is left out: give the Python of an environment that has it as --rapidocr", file=sys.stderr)
    else:
        yield rapidocr(files, args)
    if shutil.which("tesseract") is None:
        print("Tesseract is left out: it is not installed", file=sys.stderr)
    else:
        yield tesseract(files, args)


def inkmill(files: list[Path], args: argparse.Namespace) -> Found:
    """Read with inkmill, one image after the other."""
    reader = Reader(args.model, "cpu", threads=args.threads)
    images = [file.read_bytes() for file in files]
    texts, seconds = [], []
    for _ in range(args.rounds + 1):  # the first warms up
        start = perf_counter()
        texts = [reader.read(image)[0].text for image in images]
        seconds.append(perf_counter() - start)
    name = f"inkmill, {Path(args.model).name if args.model else 'the packaged reader'}"
    return Found(name, texts, seconds[1:])


def rapidocr(files: list[Path], args: argparse.Namespace) -> Found:
    """Read with RapidOCR's recogniser, one image after the other."""
    asked = json.dumps({"files": [str(file) for file in files], "threads": args.threads, "rounds": args.rounds})
    done = subprocess.run([args.rapidocr, RAPIDOCR], input=asked, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return Found(f"RapidOCR {found['version']}", found["texts"], found["seconds"])


def tesseract(files: list[Path], args: argparse.Namespace) -> Found:
    """Read with Tesseract, all files in one process; pages end with a form feed."""
    listed = files[0].parent / "list.txt"
    listed.write_text("".join(f"{file}\n" for file in files), encoding="utf-8")
    command = ["tesseract", str(listed), "stdout", "--psm", "8"]
    start = perf_counter()
    environment = {**os.environ, "OMP_THREAD_LIMIT": str(args.threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    pages = [page.strip() for page in done.stdout.split("\f")][: len(files)]
    version = subprocess.run(["tesseract", "--version"], capture_output=True, text=True, check=True)
    name = f"Tesseract {(version.stdout or version.stderr).split()[1]}"
    return Found(name, pages, [perf_counter() - start])


def write_files(source: Source, rows: list[int], folder: Path) -> tuple[list[Path], list[str]]:
    """Write samples as PNG files that every reader takes; return them and what they say."""
    files, truths = [], []
    for number, row in enumerate(rows):
        sample = source.get(row)
        image = cv2.imdecode(np.frombuffer(sample.image, np.uint8), cv2.IMREAD_COLOR)
        if image is None or not isinstance(sample.target, Text):
            continue
        files.append(folder / f"{number:06d}.png")
        cv2.imwrite(str(files[-1]), image)
        truths.append(sample.target.value)
    return files, truths


def row_of(found: Found, truths: list[str]) -> dict[str, Any]:
    """Return a line of the table."""
    figures = score(truths, found.texts)
    return {
        "reader": found.reader,
        "words_right": figures.word_accuracy,
        "words_right_36": figures.word_accuracy_36,
        "cer": figures.cer,
        "ms_a_word": 1000 * median(found.seconds) / len(truths),
        "ms_fastest": 1000 * min(found.seconds) / len(truths),
    }


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print the table."""
    table = Table("reader", "words right", "36 characters", "CER", "ms a word", title=title, title_justify="left")
    for row in rows:
        shares = ("-" if row[name] is None else f"{row[name]:.1%}" for name in ("words_right", "words_right_36", "cer"))
        table.add_row(row["reader"], *shares, f"{row['ms_a_word']:.1f}")
    Console(width=120).print(table)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+", help="sets of word crops, in any format that inkmill knows")
    parser.add_argument("--model", help="a .onnx file; the packaged reader without it")
    parser.add_argument("--images", type=int, default=500, help="of each set, evenly spread")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rapidocr", help="Python of an environment with rapidocr")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    machine, every = machine_stamp(), {}
    for path in args.data:
        source = open_source(SourceSpec(path=path))
        chosen = np.linspace(0, len(source) - 1, min(args.images, len(source))).astype(int).tolist()
        with tempfile.TemporaryDirectory(prefix="inkmill-readers-") as folder:
            files, truths = write_files(source, chosen, Path(folder))
            rows = [row_of(found, truths) for found in contestants(files, args)]
        show(rows, f"{source.name}, {len(truths)} crops, {args.threads} thread; {stamp_line(machine)}")
        every[source.name] = rows
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "sets": every}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
