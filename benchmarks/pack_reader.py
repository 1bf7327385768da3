"""Turn a trained reader into the one that the package carries: int8, checked on real words, with a card.

    python benchmarks/pack_reader.py best_accuracy.safetensors --about about.md --calibrate words/ --check words/ lines/

1. The largest input is widened (`--width`): a network without position codes reads longer lines than it was trained on.
2. It is exported, and quantised with ranges measured on the sets of `--calibrate`; int8 may cost 1 % of the words of
   the sets of `--check`, else the most sensitive layers stay in float.
3. `src/inkmill/weights/reader.onnx` takes its place, and beside it `reader.md`: the text of `--about` (what it was
   trained on, under which licences), then what was measured here.

Images that calibrate or check never enter the file.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

from inkmill import weights
from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec
from inkmill.data.sources import Subset, open_source
from inkmill.deploy.export.run import export
from inkmill.deploy.quantize.run import quantize
from inkmill.machine import machine_stamp, stamp_line
from inkmill.modelfile.torch_file import load_model, save_model
from inkmill.runtime.evaluate import read_tests, score_rows
from inkmill.runtime.reader import load_reader


def widened(model: Path, width: int, folder: Path) -> Path:
    """Return a copy of a model file whose largest input is `width` pixels wide."""
    network, header = load_model(model, "cpu", None)
    wider = header.model_copy(update={"model": header.model.model_copy(update={"input_width": width})})
    save_model(folder / "reader.safetensors", network.state_dict(), wider)
    return folder / "reader.safetensors"


def made(model: Path, args: argparse.Namespace, folder: Path) -> Path:
    """Return the int8 file."""
    console = Console(width=160)
    data = [("dataset.train", args.calibrate), ("evaluate.test", args.check), ("results_dir", str(folder))]
    plain = folder / "float.onnx"
    to_export = [("export.checkpoint", str(model)), ("export.onnx_file", str(plain))]
    export(load_spec(None, [*data, *to_export]), console=console)
    small = folder / "reader.onnx"
    files = [("quantize.model_path", str(plain)), ("quantize.quantized_file", str(small))]
    quantize(load_spec(None, [*data, *files, ("quantize.max_drop", 0.01)]), console=console)
    return small


def figures(file: Path, sets: list[str], most: int) -> list[str]:
    """Return one row of a table for each set, of `most` of its pictures, evenly spread."""
    reader, spec, rows = load_reader(file, "cpu"), load_spec(None, ["evaluate.workers=0"]), []
    for one in sets:
        whole = open_source(SourceSpec(path=one))
        source = Subset(whole, np.linspace(0, len(whole) - 1, min(most, len(whole))).astype(int))
        scores, _ = score_rows(reader.task, read_tests(reader, spec, {one: source}, Console(quiet=True)), [one])
        shown = scores.table()
        shares = (shown[name] for name in ("words", "36 chars", "CER"))
        cells = ("-" if share is None else f"{share:.1%}" for share in shares)
        rows.append(f"| {Path(one).name} | {scores.samples:,} | {' | '.join(cells)} |")
    return rows


def card(args: argparse.Namespace, small: Path, rows: list[str]) -> str:
    """Return the text of reader.md."""
    header = load_reader(small, "cpu").header
    model = header.model
    return "\n".join(
        [
            Path(args.about).read_text("utf-8").rstrip(),
            "",
            "## This file",
            "",
            f"{small.stat().st_size:,} bytes, int8; {header.provenance.get('parameters', 0):,} parameters;"
            f" {model.backbone} + {model.prediction}; pictures are stretched to the nearest of the sizes from"
            f" 64 x 64 to {model.input_width} x {model.input_height}; {len(header.task_header['charset'])} characters.",
            "",
            "| set | pictures | words right | in 36 characters | CER |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"Measured by `python benchmarks/pack_reader.py` on {stamp_line(machine_stamp())}.",
            "",
        ]
    )


def main() -> int:
    """Make both files and put them in the package."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--about", required=True, help="Markdown: what it was trained on, and the licences")
    parser.add_argument("--calibrate", nargs="+", required=True, help="sets that ranges are measured on")
    parser.add_argument("--check", nargs="+", required=True, help="sets that int8 must read as well")
    parser.add_argument("--images", type=int, default=1000, help="of each set, for the figures of the card")
    parser.add_argument("--width", type=int, default=640, help="of the largest input, in pixels")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="inkmill-pack-") as folder:
        small = made(widened(args.model, args.width, Path(folder)), args, Path(folder))
        if small.stat().st_size > weights.MAX_BYTES:
            print(f"{small.stat().st_size:,} bytes are more than {weights.MAX_BYTES:,}", file=sys.stderr)
            return 1
        text = card(args, small, figures(small, args.check, args.images))
        shutil.copy(small, weights.FOLDER / "reader.onnx")
    (weights.FOLDER / "reader.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
