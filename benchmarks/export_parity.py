"""Whether ONNX files read what torch reads, for every backbone x head x TPS: one table, made by one command.

    python benchmarks/export_parity.py CROPS... [--crops 10000] [--minutes 5] [--out parity] [--precision fp16]

CROPS are data sets that `inkmill check` knows; each gives an equal part. Weights are fresh, from a fixed seed, with the
scores centred on the crops and widened, so that different crops are read as different texts: agreement is a question of
arithmetic, not of training. Readers with TPS have a fixed width, those without a free one (input_resize=height).

It runs on a CPU, for at most --minutes a row: a row that would take longer reads fewer crops, and the table says how
many. Each row is written at once, to OUT.json and OUT.md; run again with the same OUT, the command adds missing rows
and repeats those of fewer crops for which there is time now.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.deploy.export.run import export
from inkmill.deploy.samples import VerificationSet, verification_samples
from inkmill.errors import InkmillError
from inkmill.files import write_json_atomic, write_text_atomic
from inkmill.machine import machine_stamp, stamp_line
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.nn.backbones import BACKBONES
from inkmill.tasks.model import to_input
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import Recognizer, build_recognizer
from inkmill.tasks.recognition.task import Recognition

HEADS = ("CTC", "Attn", "Slots")
CHARSET = list("0123456789abcdefghijklmnopqrstuvwxyz")
LONGEST = 8
PROBES = 64
FEWEST = 300
WIDENED = 3.0
"""Standard deviation of a class's score over crops and steps."""
COLUMNS = ("backbone", "head", "TPS", "crops", "widths", "different texts", "equal strings", "largest difference")

Row = dict[str, Any]


@torch.no_grad()
def widen(model: Recognizer, samples: VerificationSet) -> float:
    """Centre the scores of every class on the pictures, widen them, and return seconds of a picture."""
    classes = model.head.get_submodule("classes")
    seen: list[torch.Tensor] = []
    hook = classes.register_forward_hook(lambda part, given, scores: seen.append(scores.flatten(0, -2)))
    start = perf_counter()
    for batch in samples.batches(32, first=1):
        model.eval()(to_input(torch.from_numpy(batch)))
    taken = perf_counter() - start
    hook.remove()
    spread, middle = torch.std_mean(torch.cat(seen), dim=0)
    classes.get_parameter("bias").sub_(middle).mul_(WIDENED / spread)
    classes.get_parameter("weight").mul_(WIDENED / spread[:, None])
    return taken / len(samples.images)


def make(row: Row, args: argparse.Namespace, folder: Path) -> tuple[Spec, int]:
    """Write a reader with fresh weights; return the spec of its export, and how many crops there is time for."""
    straightened = row["TPS"] == "TPS"
    model = {"backbone": row["backbone"], "prediction": row["head"], "TPS": straightened, "input_height": 32}
    model |= {"input_width": 160, "input_resize": "stretch" if straightened else "height"}
    model |= {"sequence": "BiLSTM", "feature_channel": 128}
    spec = load_spec(None, [f"results_dir={folder}", f"export.precision={args.precision}"])
    spec.export.checkpoint = str(folder / "reader.safetensors")
    spec.evaluate.test = [SourceSpec(path=path) for path in args.crops_from]
    card = ModelHeader.of(Recognition(ModelSpec.model_validate(model), Charset(tuple(CHARSET)), LONGEST))
    torch.manual_seed(0)
    recognizer = build_recognizer(card.model, len(card.open_task().class_names), LONGEST)
    seconds = 2 * widen(recognizer, verification_samples(spec, card, PROBES))  # ONNX Runtime needs about as long
    save_model(folder / "reader.safetensors", recognizer.state_dict(), card)
    return spec, max(FEWEST, min(args.crops, int(60 * args.minutes / seconds)))


def fill(row: Row, args: argparse.Namespace) -> Row | None:
    """Return a row with its figures, also of a file that was refused; None where there is no time for more crops."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = perf_counter()
        spec, crops = make(row, args, folder)
        if crops < 1.5 * row.get("crops", 0):
            return None
        figures: Row = {"wanted": crops}
        try:
            export(spec, crops=crops)
        except InkmillError as error:
            figures["refused"] = str(error)
        kept = folder / "export" / "metrics.json"
        if kept.is_file():
            figures |= json.loads(kept.read_text("utf-8"))
    told = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "seconds": round(perf_counter() - start)}
    return {**row, **figures, **told}


def line(row: Row) -> str:
    """Return a row of the table."""
    cells = [row["backbone"], row["head"], row["TPS"]]
    if "string_parity" in row:
        cells += [f"{row['crops']:,}", str(len(row["widths"])), f"{row['different_texts']:,}"]
        ties = f", ties: {row['ties']}" if row.get("ties") else ""
        cells += [f"{row['string_parity']:.2%}{ties}", f"{row['max_probability_difference']:.0e}"]
    else:
        cells += ["", "", "", row["refused"], ""]
    return "| " + " | ".join(cells) + " |"


def table(rows: list[Row], title: str) -> str:
    """Return the page."""
    found = [row for row in rows if "wanted" in row]
    head = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([title, "", *head, *map(line, found)]) + "\n"


def main() -> None:
    """Make the table, a row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crops_from", metavar="CROPS", nargs="+")
    parser.add_argument("--crops", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=5, help="time of a row")
    parser.add_argument("--out", type=Path, default=Path("parity"))
    parser.add_argument("--precision", choices=["fp32", "fp16"], default="fp32")
    parser.add_argument("--only", default="", help="backbones, with commas between")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kept = args.out.with_suffix(".json")
    rows: list[Row] = json.loads(kept.read_text("utf-8"))["rows"] if kept.is_file() else []
    wanted = [name for name in args.only.split(",") if name] or BACKBONES.names()
    for backbone, head, straightened in product(wanted, HEADS, ("no", "TPS")):
        name = {"backbone": backbone, "head": head, "TPS": straightened, "precision": args.precision}
        row = next((row for row in rows if name.items() <= row.items()), None)
        if row is None:
            rows.append(row := name)
        if row.get("wanted", 0) >= args.crops or (made := fill(row, args)) is None:
            continue
        rows[rows.index(row)] = made
        machine = machine_stamp()
        write_json_atomic(kept, {"machine": machine, "rows": rows})
        page = table(rows, f"{stamp_line(machine)}; torch {torch.__version__}, {args.threads} threads")
        write_text_atomic(args.out.with_suffix(".md"), page)
        print(line(made), f"{made['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
