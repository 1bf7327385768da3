"""Whole pages on one CPU thread: inkmill beside RapidOCR and Tesseract, the same files, one run.

    python benchmarks/pages.py receipts/ forms/ [--detector det.onnx --reader rec.onnx] [--rapidocr /venv/bin/python]
        [--images 60] [--turn 0 90 180] [--drawn]

The sets are pages with regions and texts in any format that inkmill knows (each its files as PNG, so that every reader
decodes the same); of each, every n-th page. `--turn` turns them clockwise. `--drawn` adds an A4 page at 150 dpi of 45
lines, and a receipt of 480 x 1400 of 86 regions, drawn with DejaVu. Each reader runs in a process of its own; one page
before the clock starts warms it up. Not there: left out with a word.

CER is edits over characters of a page's text, words F1 that of the bag of words, both without regard to capitals; the
regions of the truth and of every reader are put in one order by the same function, so that neither counts the reading
order. Lines are those found (intersection over union above one half) with exactly the right text, F1. Agreement is the
share of RapidOCR's regions for which inkmill says the same at the same place.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from rich.console import Console
from rich.table import Table

from inkmill.config.dataset import SourceSpec
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import open_source
from inkmill.data.types import Polygons
from inkmill.machine import machine_stamp, stamp_line
from inkmill.pages.geometry import apply as move
from inkmill.pages.geometry import bounds, facing, rectangle, turn_pixels, turned
from inkmill.pages.order import reading_order

PEERS = Path(__file__).parent / "peers"
Regions = list[tuple[NDArray[np.float32], str]]


class Run(NamedTuple):
    """What one reader read, and what it took."""

    reader: str
    pages: list[Regions]
    cpu_seconds: list[float]
    peak_mib: float


class Task(NamedTuple):
    """A set of pages, turned one way."""

    name: str
    files: list[Path]
    truths: list[Regions]
    turn: int


def tasks(args: argparse.Namespace, folder: Path) -> Iterator[Task]:
    """Yield the sets, written as files."""
    for path in args.data:
        source = open_source(SourceSpec(path=path))
        rows = range(args.first, len(source), max(1, len(source) // args.images))
        for turn in args.turn:
            files, truths = [], []
            for row in list(rows)[: args.images]:
                sample = source.get(row)
                if isinstance(sample.target, Polygons):
                    pixels = decode(sample.image, 3)
                    files.append(_write(folder, f"{source.name}-{turn}-{row}", turn_pixels(pixels, (360 - turn) % 360)))
                    matrix = turned(pixels.shape[1], pixels.shape[0], (360 - turn) % 360)
                    target = sample.target
                    known = zip(target.points, target.texts, target.ignore, strict=True)
                    truths.append([(move(matrix, points), text) for points, text, skip in known if not skip])
            yield Task(source.name, files, truths, turn)
    if args.drawn:
        for name, (pixels, regions) in {"A4, 45 lines": draw_a4(), "receipt, 86 regions": draw_receipt()}.items():
            yield Task(name, [_write(folder, name.split(",")[0], pixels)], [regions], 0)


def _write(folder: Path, name: str, pixels: NDArray[np.uint8]) -> Path:
    path = folder / f"{name}.png"
    cv2.imwrite(str(path), cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    return path


def draw_a4() -> tuple[NDArray[np.uint8], Regions]:
    """Return a page of 45 lines of words of letters, and its lines."""
    rng = random.Random(5)
    lines = []
    for row in range(45):
        words = [_word(rng) for _ in range(40)]
        lines.append((80, 70 + 36 * row, " ".join(words)[:92].rstrip()))
    return _draw((1240, 1754), 20, "DejaVuSerif.ttf", lines)


def draw_receipt() -> tuple[NDArray[np.uint8], Regions]:
    """Return a receipt of 43 rows, each a name and a price."""
    rng = random.Random(6)
    names = [(20, 20 + 32 * row, f"{_word(rng)} {_word(rng)}".upper()[:22]) for row in range(43)]
    prices = [(395, 20 + 32 * row, f"{rng.random() * 90 + 10:.2f}") for row in range(43)]
    return _draw((480, 1400), 17, "DejaVuSansMono.ttf", [*names, *prices])


def _word(rng: random.Random) -> str:
    vowels, others = "aeiou", "bcdfghklmnprstvw"
    return "".join(rng.choice(others) + rng.choice(vowels) for _ in range(rng.randint(1, 3))) + rng.choice(others)


def _draw(
    size: tuple[int, int], height: int, font: str, lines: Sequence[tuple[int, int, str]]
) -> tuple[NDArray[np.uint8], Regions]:
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    type_face = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font), height)
    found: Regions = []
    for x, y, text in lines:
        pen.text((x, y), text, font=type_face, fill=(25, 25, 25))
        left, top, right, bottom = pen.textbbox((x, y), text, font=type_face)
        corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
        found.append((np.array(corners, np.float32), text))
    return np.asarray(image), found


def contestants(task: Task, args: argparse.Namespace) -> Iterator[Run]:
    """Yield what each reader read."""
    yield _asked(sys.executable, "inkmill", task, args)
    if args.rapidocr:
        yield _asked(args.rapidocr, "rapidocr", task, args)
    if shutil.which("tesseract"):
        yield tesseract(task, args)


def _asked(python: str, name: str, task: Task, args: argparse.Namespace) -> Run:
    """Run `peers/NAME_pages.py` with a Python."""
    files = [str(file) for file in task.files]
    request = {"files": files, "threads": args.threads, "detector": args.detector, "reader": args.reader}
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    command = [python, str(PEERS / f"{name}_pages.py")]
    done = subprocess.run(
        command, input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    pages = [[(np.array(one["points"], np.float32), one["text"]) for one in page] for page in answer["pages"]]
    return Run(f"{name} {answer['version']}", pages, answer["cpu_seconds"], answer["peak_mib"])


def tesseract(task: Task, args: argparse.Namespace) -> Run:
    """Read each page with the command and its defaults; its memory is not measured."""
    pages, seconds = [], []
    environment = {**os.environ, "OMP_THREAD_LIMIT": str(args.threads)}
    for file in task.files:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(["tesseract", file, "stdout", "tsv"], capture_output=True, text=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        pages.append(_lines_of_tsv(done.stdout))
    version = subprocess.run(["tesseract", "--version"], capture_output=True, text=True, check=True)
    return Run(f"tesseract {(version.stdout or version.stderr).split()[1]}", pages, seconds, 0.0)


def _lines_of_tsv(content: str) -> Regions:
    """Return Tesseract's lines, from its words."""
    lines: dict[tuple[str, ...], Regions] = {}
    for row in csv.DictReader(io.StringIO(content), delimiter="\t", quoting=csv.QUOTE_NONE):
        if row["level"] == "5" and row["text"].strip():
            left, top, width, height = (float(row[name]) for name in ("left", "top", "width", "height"))
            corners = [[left, top], [left + width, top], [left + width, top + height], [left, top + height]]
            key = (row["block_num"], row["par_num"], row["line_num"])
            lines.setdefault(key, []).append((np.array(corners, np.float32), row["text"]))
    found: Regions = []
    for words in lines.values():
        left, top, right, bottom = bounds(np.concatenate([points for points, _ in words])).tolist()
        corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
        found.append((np.array(corners, np.float32), " ".join(text for _, text in words)))
    return found


def scores(task: Task, pages: Sequence[Regions]) -> dict[str, float]:
    """Return CER, words F1 and lines F1 of a set."""
    edits = characters = same = words = lines = regions = 0
    for truth, found in zip(task.truths, pages, strict=True):
        wanted, given = (_ordered(one, task.turn) for one in (truth, found))
        text, said = (" ".join(part.casefold() for _, part in one).split() for one in (wanted, given))
        edits += Levenshtein.distance(" ".join(text), " ".join(said))
        characters += len(" ".join(text))
        same += sum((Counter(text) & Counter(said)).values())
        words += len(text) + len(said)
        lines += _exact_lines(wanted, given)
        regions += len(wanted) + len(given)
    return {
        "cer": edits / max(characters, 1),
        "words_f1": 2 * same / max(words, 1),
        "lines_f1": 2 * lines / max(regions, 1),
    }


def _ordered(regions: Regions, turn: int) -> Regions:
    """Return regions in reading order; those of a turned page are turned back for it."""
    back = turned(10_000, 10_000, turn)
    quads = [facing(rectangle(move(back, points)), 0) for points, _ in regions]
    return [regions[place.line] for place in reading_order(quads)]


def _exact_lines(wanted: Regions, given: Regions) -> int:
    if not wanted or not given:
        return 0
    a, b = (np.stack([bounds(points) for points, _ in one]) for one in (wanted, given))
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(one[:, 2:] - one[:, :2]).prod(axis=1) for one in (a, b)]
    union = areas[0][:, None] + areas[1][None] - shared
    best = (shared / np.maximum(union, 1e-6)).argmax(axis=1)
    pairs = zip(range(len(wanted)), best.tolist(), strict=True)
    return sum(
        shared[i, j] > union[i, j] / 2 and wanted[i][1].casefold() == given[j][1].casefold().strip() for i, j in pairs
    )


def agreement(ours: Sequence[Regions], theirs: Sequence[Regions]) -> float:
    """Return the share of their regions for which we say the same text at the same place."""
    same = total = 0
    for mine, others in zip(ours, theirs, strict=True):
        centres = np.array([points.mean(axis=0) for points, _ in mine]).reshape(-1, 2)
        total += len(others)
        for points, text in others:
            if len(mine):
                nearest = int(np.abs(centres - points.mean(axis=0)).sum(axis=1).argmin())
                same += mine[nearest][1] == text.strip()
    return same / max(total, 1)


def measure(task: Task, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a line of the table for each reader."""
    runs = list(contestants(task, args))
    rows = []
    for run in runs:
        row = {"reader": run.reader, "cpu_s_a_page": float(np.mean(run.cpu_seconds)), "peak_mib": run.peak_mib}
        row.update(scores(task, run.pages))
        if run.reader.startswith("rapidocr"):
            row["agreement"] = agreement(runs[0].pages, run.pages)
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Print the table."""
    heads = ("reader", "CPU-s a page", "peak MiB", "CER", "words F1", "lines F1", "inkmill says the same")
    table = Table(*heads, title=title, title_justify="left")
    for row in rows:
        figures = [f"{row['cpu_s_a_page']:.2f}", f"{row['peak_mib']:.0f}" if row["peak_mib"] else "-"]
        figures += [f"{row[name]:.3f}" for name in ("cer", "words_f1", "lines_f1")]
        table.add_row(row["reader"], *figures, f"{row['agreement']:.1%}" if "agreement" in row else "")
    Console(width=120).print(table)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="*", help="sets of pages with regions and texts")
    parser.add_argument("--detector", help="an ONNX file; without it the packaged one")
    parser.add_argument("--reader", help="an ONNX file; without it the packaged one")
    parser.add_argument("--rapidocr", help="Python of an environment with rapidocr")
    parser.add_argument("--images", type=int, default=60, help="pages of each set, evenly spread")
    parser.add_argument("--first", type=int, default=9, help="the first of them: the tenth of each ten is held out")
    parser.add_argument("--turn", type=int, nargs="+", default=[0], choices=[0, 90, 180, 270])
    parser.add_argument("--drawn", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    machine, every = machine_stamp(), {}
    with tempfile.TemporaryDirectory(prefix="inkmill-pages-") as folder:
        for task in tasks(args, Path(folder)):
            name = f"{task.name}, {len(task.files)} pages" + (f", turned by {task.turn}°" if task.turn else "")
            every[name] = measure(task, args)
            show(every[name], f"{name}, {args.threads} thread; {stamp_line(machine)}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "sets": every}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
