"""Whether ONNX files read what torch reads, for every backbone x head x TPS: one table, made by one command.

python benchmarks/export_parity.py CROPS [--crops 10000] [--precision fp16] [--only Tiny,VGG]

CROPS is any data set that `inkmill check` knows. Weights are fresh, from a fixed seed, with the scores centred on the
crops and widened, so that different crops are read as different texts: agreement is a question of arithmetic, not of
training. Readers with TPS have a fixed width, those without a free one (input_fit=height).
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.errors import InkmillError
from inkmill.export.onnx import export
from inkmill.export.pictures import Pictures, choose_pictures
from inkmill.models import Recognizer, build_recognizer
from inkmill.models.backbones import BACKBONES
from inkmill.models.file import save_reader
from inkmill.runtime.card import ReaderCard
from inkmill.training.reading import to_input

HEADS = ("CTC", "Attn", "Slots")
CHARSET = list("0123456789abcdefghijklmnopqrstuvwxyz")
LONGEST = 8
WIDENED = 3.0
"""Standard deviation of a class's score over crops and steps."""


@torch.no_grad()
def widen(model: Recognizer, pictures: Pictures) -> None:
    """Centre the scores of every class on the pictures, and widen them."""
    classes = model.head.get_submodule("classes")
    seen: list[torch.Tensor] = []
    hook = classes.register_forward_hook(lambda part, given, scores: seen.append(scores.flatten(0, -2)))
    for batch in pictures.batches():
        model.eval()(to_input(torch.from_numpy(batch)))
    hook.remove()
    spread, middle = torch.std_mean(torch.cat(seen), dim=0)
    classes.get_parameter("bias").sub_(middle).mul_(WIDENED / spread)
    classes.get_parameter("weight").mul_(WIDENED / spread[:, None])


def make(backbone: str, head: str, straightened: bool, args: argparse.Namespace, folder: Path) -> Spec:
    """Write a reader with fresh weights, and return the spec of its export."""
    model = {"backbone": backbone, "prediction": head, "TPS": straightened, "input_height": 32, "input_width": 160}
    model |= {"sequence": "BiLSTM", "input_fit": "stretch" if straightened else "height", "feature_channel": 128}
    spec = load_spec(None, [f"results_dir={folder}", f"export.precision={args.precision}"])
    spec.export.checkpoint = str(folder / "reader.safetensors")
    spec.evaluate.test = [SourceSpec(path=args.crops_from)]
    card = ReaderCard(model=ModelSpec.model_validate(model), charset=CHARSET, max_label_length=LONGEST)
    torch.manual_seed(0)
    recognizer = build_recognizer(card.model, card.codec().num_classes, LONGEST)
    widen(recognizer, choose_pictures(spec, card, 64))
    save_reader(folder / "reader.safetensors", recognizer.state_dict(), card)
    return spec


def rows(args: argparse.Namespace) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield backbone, head, TPS and figures of every combination; a refused one has its figures too."""
    wanted = [name for name in args.only.split(",") if name] or BACKBONES.names()
    for backbone, head, straightened in product(wanted, HEADS, (False, True)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            figures: dict[str, Any] = {}
            try:
                export(make(backbone, head, straightened, args, folder), crops=args.crops)
            except InkmillError as error:
                figures["refused"] = str(error)
            kept = folder / "export" / "metrics.json"
            if kept.is_file():
                figures |= json.loads(kept.read_text("utf-8"))
        yield backbone, head, "TPS" if straightened else "no", figures


def main() -> None:
    """Print the table, a row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crops_from", metavar="CROPS")
    parser.add_argument("--crops", type=int, default=10_000)
    parser.add_argument("--precision", choices=["fp32", "fp16"], default="fp32")
    parser.add_argument("--only", default="", help="backbones, with commas between")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {platform.machine()}, {args.threads} threads, {args.precision}\n")
    print("| backbone | head | TPS | crops | widths | different texts | equal strings | largest difference |")
    print("|---|---|---|---|---|---|---|---|")
    for backbone, head, straightened, found in rows(args):
        if "string_parity" not in found:
            print(f"| {backbone} | {head} | {straightened} | | | | {found['refused']} | |", flush=True)
            continue
        print(
            f"| {backbone} | {head} | {straightened} | {found['crops']:,} | {len(found['widths'])} | "
            f"{found['different_texts']:,} | {found['string_parity']:.2%} | "
            f"{found['max_probability_difference']:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
