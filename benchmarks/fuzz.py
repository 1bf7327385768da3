"""Damaged and hostile files: model files, images, data sets and specs, each must be read or refused in one sentence.

    python benchmarks/fuzz.py                     # 1,000 of each, about four minutes on two cores
    python benchmarks/fuzz.py --files 60 --images 60 --sets 60 --seed 1
    nice -n 19 python benchmarks/fuzz.py --files 5000 --images 25000 --sets 70000 --seed 22   # 100,000

Data sets are label files of every format, tar shards, their indexes, and LMDBs; `benchmarks/fuzz_sets.py` mutates them.

Cases run in a child process with 2 GiB of memory beyond what it starts with; a child that dies or takes longer than
20 s is named, counted and replaced. Mutated files are also given valid checksums, so that the parsers behind these meet
them too. The exit code is 1 if a case crashed, hung, took too much memory or raised an error that is not inkmill's.
Linux only; no GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fuzz_mutations import Case, image_cases, model_cases
from fuzz_sets import make_sets, set_cases, try_set

LIMIT_S = 20.0
LIMIT_BYTES = 2 << 30
CAPTCHAS = Path(__file__).parent.parent / "examples" / "captcha_digits4.tar"


def main() -> int:
    """Run the cases and return the exit code."""
    asked = _arguments()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pictures = _pictures(12)
        models = _models(folder, asked.models)
        random = np.random.default_rng(asked.seed)
        sets = make_sets(folder, pictures)
        cases = chain(
            set_cases(sets, asked.sets, random),
            model_cases(models, asked.files, random),
            image_cases(pictures, asked.images, random),
        )
        (folder / "set.tar").write_bytes(sets["set.tar"])
        (folder / "picture.png").write_bytes(pictures[0])
        outcomes, peak, slowest = _run(cases, folder, models["onnx"])
    bad = _show(outcomes, peak, slowest, asked.seed)
    return 1 if bad or peak > LIMIT_BYTES else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="mutated model files")
    parser.add_argument("--images", type=int, default=1000, help="mutated images")
    parser.add_argument("--sets", type=int, default=1000, help="mutated label files, shards, LMDBs and specs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, help="folder with reader.safetensors and reader.onnx; made where absent")
    return parser.parse_args()


def _pictures(count: int) -> list[bytes]:
    with tarfile.open(CAPTCHAS) as tar:
        names = [name for name in sorted(tar.getnames()) if name.endswith((".png", ".jpg"))][:count]
        return [tar.extractfile(name).read() for name in names]  # type: ignore[union-attr]


def _models(folder: Path, given: Path | None) -> dict[str, bytes]:
    import torch

    from inkmill.modelfile.torch_file import read_weights

    given = given or _made(folder)
    weights, card = read_weights(given / "reader.safetensors")
    torch.save({"header": card.to_json(), "model": weights}, folder / "reader.pth")
    return {
        "onnx": (given / "reader.onnx").read_bytes(),
        "safetensors": (given / "reader.safetensors").read_bytes(),
        "pth": (folder / "reader.pth").read_bytes(),
    }


def _made(folder: Path) -> Path:
    from inkmill.config.load import load_spec
    from inkmill.config.model import ModelSpec
    from inkmill.deploy.export.run import export
    from inkmill.modelfile.header import ModelHeader
    from inkmill.modelfile.torch_file import save_model
    from inkmill.tasks.recognition.charset import Charset
    from inkmill.tasks.recognition.model import build_recognizer
    from inkmill.tasks.recognition.task import Recognition

    spec = ModelSpec(backbone="Tiny", input_width=64, hidden_size=32)
    card = ModelHeader.of(Recognition(spec, Charset(tuple("0123456789")), 6))
    save_model(folder / "reader.safetensors", build_recognizer(spec, 11, 6).state_dict(), card)
    settings = [f"export.checkpoint={folder / 'reader.safetensors'}", "export.probabilities=true"]
    export(load_spec(None, [*settings, f"results_dir={folder / 'results'}"]))
    return folder


def _run(cases: Iterable[Case], folder: Path, reader: bytes) -> tuple[Counter[tuple[str, str, str]], int, float]:
    """Return how often each (kind, mutation, outcome) occurred, the peak memory and the longest case in seconds."""
    (folder / "good.onnx").write_bytes(reader)
    outcomes: Counter[tuple[str, str, str]] = Counter()
    peak, slowest = 0, 0.0
    worker: _Worker | None = None
    for number, case in enumerate(cases):
        worker = worker or _Worker(folder)
        started = time.perf_counter()
        outcome, memory = worker.try_case(case)
        slowest = max(slowest, time.perf_counter() - started)
        if memory > peak and memory > LIMIT_BYTES // 2:
            print(
                f"case {number}, {case.kind}, {case.mutation}: peak memory {memory / 2**20:,.0f} MiB", file=sys.stderr
            )
        peak = max(peak, memory)
        outcomes[case.kind, case.mutation, outcome.partition(":")[0]] += 1
        if outcome.startswith(("CRASH", "HANG", "OTHER")):
            kept = Path(tempfile.gettempdir()) / f"fuzz-{number}-{case.kind}"
            kept.write_bytes(case.data)
            print(f"case {number}, {case.kind}, {case.mutation}: {outcome}; kept as {kept}", file=sys.stderr)
        if outcome.startswith(("CRASH", "HANG")):
            worker.stop()
            worker = None
    if worker is not None:
        worker.stop()
    return outcomes, peak, slowest


class _Worker:
    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, folder), daemon=True)
        self._process.start()
        there.close()
        self._here.recv()  # it has imported what it needs

    def try_case(self, case: Case) -> tuple[str, int]:
        self._here.send(case)
        if not self._here.poll(LIMIT_S):
            return f"HANG: longer than {LIMIT_S} s", 0
        try:
            answer: tuple[str, int] = self._here.recv()
        except EOFError:
            self._process.join()
            return f"CRASH: exit code {self._process.exitcode}", 0
        return answer

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _work(pipe: Connection, folder: Path) -> None:
    import torch

    import inkmill
    import inkmill.runtime.torch_reader

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the decoders of OpenCV tell of each damage there

    torch.set_num_threads(1)
    good = inkmill.load(folder / "good.onnx", "cpu")
    good.read(folder / "picture.png")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, used + LIMIT_BYTES))
    pipe.send("ready")
    while True:
        case: Case = pipe.recv()
        outcome = _outcome(case, folder, good)
        pipe.send((outcome, _peak_memory()))


def _peak_memory() -> int:
    """Not getrusage: that counts what the parent had when this process was started."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _outcome(case: Case, folder: Path, good: Any) -> str:
    import inkmill

    try:
        if "." in case.kind:
            return try_set(case, folder, {"set.tar": (folder / "set.tar").read_bytes()})
        if case.kind in ("onnx", "safetensors", "pth"):
            path = folder / f"mutated.{case.kind}"
            path.write_bytes(case.data)
            readings = inkmill.load(path, "cpu").read(folder / "picture.png")
        else:
            readings = good.read(case.data)
    except inkmill.InkmillError as error:
        return f"refused: {error}" if "\n" not in str(error) else f"OTHER: a message of several lines: {error!r}"
    except BaseException as error:
        return f"OTHER: {type(error).__name__}: {str(error)[:300]}"
    sane = len(readings) == 1 and 0 <= readings[0].confidence <= 1
    return "read" if sane else f"OTHER: {readings}"


def _show(outcomes: Counter[tuple[str, str, str]], peak: int, slowest: float, seed: int) -> int:
    table = Table(title=f"seed {seed}: peak memory {peak / 2**20:,.0f} MiB, longest case {slowest:.1f} s")
    for heading in ("file", "mutation", "cases", "refused", "read", "other error", "crash", "hang"):
        table.add_column(heading, justify="left" if heading in ("file", "mutation") else "right")
    for kind, mutation in sorted({key[:2] for key in outcomes}):
        counts = [outcomes[kind, mutation, outcome] for outcome in ("refused", "read", "OTHER", "CRASH", "HANG")]
        table.add_row(kind, mutation, str(sum(counts)), *map(str, counts))
    totals = [
        sum(n for key, n in outcomes.items() if key[2] == o) for o in ("refused", "read", "OTHER", "CRASH", "HANG")
    ]
    table.add_section()
    table.add_row("all", "", str(sum(totals)), *map(str, totals))
    Console(width=110).print(table)
    return sum(totals[2:])


if __name__ == "__main__":
    sys.exit(main())
