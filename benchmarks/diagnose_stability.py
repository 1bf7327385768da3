"""Is an injected bottleneck named every time? Each of `injected.py`, many times over.

    python benchmarks/diagnose_stability.py [--times 20] [--seconds 3] [--only NAME]

Small real training runs on a CPU, each slow for one known reason. The table says how often `inkmill diagnose` named it,
what else it said, and how many cores other programs used meanwhile. A huge model may be called `launch` where others
use more than half a core: then it is one. The exit code is 1 where an injected bottleneck was not named.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from rich.table import Table

from injected import BOTTLENECKS, InjectedBottleneck, injected
from inkmill.config.dataset import SourceSpec
from inkmill.data.sources import Source, open_source
from inkmill.diagnose.run import diagnose
from inkmill.machine import machine_stamp, stamp_line

DATA = Path(__file__).parent.parent / "examples" / "captcha_digits4.tar"
BUSY = 0.5


def once(case: InjectedBottleneck, whole: Source, seconds: float) -> tuple[str, float]:
    """Return the verdict on a case and the cores that others used."""
    with tempfile.TemporaryDirectory() as folder, injected(case, whole, Path(folder)) as (spec, source):
        found = diagnose(spec, lambda line: None, source=source, seconds=seconds)
    others = found.others_cores or 0.0
    named = found.verdict.name == case.verdict or (
        case.verdict == "compute" and found.verdict.name == "launch" and others > BUSY
    )
    return ("right" if named else found.verdict.name), others


def main() -> int:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title=stamp_line(machine_stamp()), title_justify="left")
    for heading in ("injected", "verdict", "named", "other verdicts", "cores used by others"):
        table.add_column(heading)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, tarfile.open(DATA) as tar:
        tar.extractall(folder, filter="data")
        whole = open_source(SourceSpec(path=f"{folder}/captcha_digits4"))
        for case in BOTTLENECKS:
            if args.only not in case.name:
                continue
            runs = [once(case, whole, args.seconds) for _ in range(args.times)]
            counts = Counter(verdict for verdict, _ in runs)
            right = counts.pop("right", 0)
            wrong += args.times - right
            others = ", ".join(f"{name} {count}" for name, count in counts.items())
            load = f"{fmean(load for _, load in runs):.1f}"
            table.add_row(case.name, case.verdict, f"{right} of {args.times}", others, load)
            print(f"{case.name}: {right} of {args.times} {others}", file=sys.stderr, flush=True)
    Console().print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
