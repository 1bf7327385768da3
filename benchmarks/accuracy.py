"""Trains and scores a reader on real data sets, and prints a row for each: the tables of docs/accuracy.md.

    python benchmarks/accuracy.py RECIPE DATA [DATA ...] [--held 0.1] [--out FOLDER] [a.b=c ...]

RECIPE is a spec file of benchmarks/recipes/ or a preset; each DATA a folder with `labels.tsv` (path TAB text) and the
images it names. A fixed share of every set (by a hash of the file's name, the same on every machine) is held out before
anything else happens: training never sees it, nor does the choice of the best epoch, for which training holds out its
own share. The held-out part is what is scored.

It takes as long as training RECIPE: minutes to hours. Recipes named `_cpu` are for two cores (18 minutes for
vietnamese_lines_cpu), the others for one GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

from rich.console import Console

from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec
from inkmill.runtime.evaluate import evaluate
from inkmill.training.run import train


def split(folder: Path, out: Path, held: float) -> tuple[Path, Path]:
    """Write train.tsv and test.tsv with absolute paths; the samples with the smallest hashes are held out."""
    rows = [line.split("\t") for line in (folder / "labels.tsv").read_text("utf-8").splitlines()]
    rows.sort(key=lambda row: hashlib.blake2b(row[0].encode(), digest_size=8).hexdigest())
    count = round(held if held > 1 else held * len(rows))
    files = []
    for name, part in (("test", rows[:count]), ("train", rows[count:])):
        file = out / f"{folder.name}-{name}.tsv"
        file.write_text("".join(f"{(folder / path).resolve()}\t{text}\n" for path, text in part), "utf-8")
        files.append(file)
    return files[1], files[0]


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("words", nargs="+", metavar="DATA or a.b=c")
    parser.add_argument("--held", type=float, default=0.1, help="share (or count) held out of each set")
    parser.add_argument("--weight", type=float, default=1, help="weight of each training set: longer epochs")
    parser.add_argument("--out", type=Path, default=Path("results/accuracy"))
    asked = parser.parse_intermixed_args()
    overrides = [word for word in asked.words if "=" in word]
    folders = [Path(word) for word in asked.words if "=" not in word]
    name = f"{Path(asked.recipe).stem}-{'+'.join(folder.name for folder in folders)}"
    out = asked.out / name
    out.mkdir(parents=True, exist_ok=True)
    parts = [split(folder, out, asked.held) for folder in folders]
    spec = load_spec(asked.recipe, [f"results_dir={out}", *overrides])
    spec.dataset.train = [SourceSpec(path=str(part[0]), weight=asked.weight) for part in parts]
    spec.evaluate.test = [SourceSpec(path=str(part[1])) for part in parts]
    console = Console(width=120)
    started = time.perf_counter()
    result = train(spec, console=console)
    seconds = time.perf_counter() - started
    spec.evaluate.checkpoint = str(result.model)
    metrics = evaluate(spec, console=console)
    row = {"name": name, "train_s": round(seconds, 1), "machine": result.metrics["machine"]}
    keys = ["samples", "word_accuracy", "word_accuracy_ignore_case", "word_accuracy_36", "cer", "one_minus_ned"]
    keys += ["space_accuracy", "diacritic_accuracy"]
    row |= {"all": {key: metrics[key] for key in keys}}
    row |= {"sets": {set_name: {key: one[key] for key in keys} for set_name, one in metrics["sets"].items()}}
    print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
