"""Does training wait for data? Images a second of real training steps, by where the pictures come from.

    python benchmarks/train_speed.py [--images 100000] [--seconds 8] [--workers N] [--model NAME] [--compile auto]
    python benchmarks/train_speed.py --batch-size 128 256 512 1024 2048 4096 [--seconds 2] [--model NAME]

Models on 3-channel JPEG word crops, the strong augmentation always on: TAO's OCRNet (ResNet, 2 BiLSTM, CTC, 32x100),
its variant TPS that straightens and attends, and ConvMix (under 5 M parameters, CTC, 32x128). bf16, channels-last,
AdamW, gradients clipped, the step as `inkmill train` does it (`--compile` is its train.compile).

    repeated        one batch on the device, augmented once: the throughput of the training step itself
    streamed        from an LMDB by worker processes, augmented on the device
    ram             resized images cached in RAM, the rest as above
    streamed, cpu   as above, augmented in the worker processes
    ram, cpu
    device          resized images cached in the device's memory, and augmented there
    inkmill train   the command in a process of its own, streamed: the throughput that it reports for its last epochs
    classic         fp32 eager, torch DataLoader + Pillow + torchvision v2; labels are prepared before the clock runs

`of step` is the throughput over that of `repeated`, `times classic` over that of `classic`, all of this run. `without
data` is the share of time in which the GPU was idle because no batch was ready; what `of step` lacks beyond that was
lost elsewhere. With `--batch-size` the step alone is measured, on a random batch that lies on the device, each size
eager, captured as a CUDA graph and with the backbone compiled too; `start` is the seconds until four steps are done,
and MFU the arithmetic of the model (torch's flop counter, forward and backward) over the GPU's bf16 peak. A figure is
the median of 3 windows (of 5 with `--batch-size`) after a warm-up epoch, its spread their range over it. It needs a
GPU and takes seven minutes on one H200 with 16 cores. `--smoke` runs everything once on small models and a CPU: a
test, not a measurement.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from inkmill.bench import baseline
from inkmill.bench.cases import LoadTask, augmented, open_case, plan_for
from inkmill.bench.run import Measured, measure
from inkmill.bench.workload import strong_spec, write_crops
from inkmill.config.dataset import DatasetSpec
from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.config.train import OptimSpec, TrainSpec
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.loaders.resident import ResidentLoader
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import LmdbSource, Source
from inkmill.data.types import Batch
from inkmill.machine import cores, machine_stamp, stamp_line
from inkmill.tasks.model import to_device, to_input
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.training.optim import build_optimizer
from inkmill.training.run import launch, set_up_torch
from inkmill.training.step import TrainingStep, make_step

CHARS = Charset.from_texts(["0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"])
CODEC = make_codec("CTC", CHARS, 25)
CLASSIC_BATCH = 192
WINDOWS = 5
STEPS: dict[str, bool | str] = {"eager": False, "captured": "auto", "compiled": True}
"""Ways to do the step: values of train.compile."""
PEAKS = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA A100-SXM4-80GB": 312e12}
"""Dense bf16 operations a second, by the vendor's data sheets."""
LIMIT_GRADIENT = 5.0

Stream = Iterator[tuple[Tensor, list[str]]]


@dataclass(frozen=True)
class Model:
    """A model under test."""

    name: str
    spec: ModelSpec
    batch_size: int
    compile: bool | str = "auto"

    @property
    def resize(self) -> Resize:
        """Its input."""
        return Resize(self.spec.input_height, self.spec.input_width, 3)


def models(smoke: bool, compile: bool | str = "auto") -> list[Model]:
    """Return OCRNet, its variant that rectifies and attends, and ConvMix, or the smallest backbone there is."""
    common: dict[str, Any] = {"input_channel": 3, "prediction": "CTC"}
    attends: dict[str, Any] = {"input_channel": 3, "prediction": "Attn"}
    if smoke:
        return [Model("Tiny", ModelSpec(backbone="Tiny", sequence="none", input_width=64, **common), 16)]
    return [
        Model("OCRNet", ModelSpec(backbone="ResNet", input_width=100, **common), 1024, compile),
        Model("TPS", ModelSpec(backbone="ResNet", TPS=True, input_width=100, **attends), 1024, compile),
        Model("ConvMix", ModelSpec(backbone="ConvMix", sequence="none", input_width=128, **common), 2048, compile),
    ]


class Step:
    """One optimiser step on uint8 BHWC images.

    Args:
        model: what to train.
        device: where.
        fast: as `inkmill train` does it, or the classic recipe.
    """

    def __init__(self, model: Model, device: str, fast: bool) -> None:
        torch.manual_seed(1)
        self.module = build_recognizer(model.spec, CODEC.num_classes, 25).to(device).train()
        self.device = device
        self.parameters = sum(p.numel() for p in self.module.parameters())
        optim = OptimSpec(name="adamw", lr=1e-4)
        if fast:
            train = TrainSpec(compile=model.compile, optim=optim, clip_grad_norm=LIMIT_GRADIENT)
            spec = Spec(model=model.spec, train=train, dataset=DatasetSpec(batch_size=model.batch_size))
            self.module = self.module.to(memory_format=torch.channels_last)
            self.step: TrainingStep | None = make_step(launch(train)[0], spec, self.module, None, _to_stderr)
        else:
            self.step, self.optimizer = None, build_optimizer(self.module, optim)

    def __call__(self, images: Tensor, ids: Tensor, lengths: Tensor) -> None:
        """Do it; nothing waits for the device."""
        if self.step is not None:
            self.step(images, (ids, lengths), updates=True)
            return
        loss = self.module.loss(self.module(to_input(images).contiguous(), ids), (ids, lengths))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), LIMIT_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return targets on the device, and lengths."""
        ids, lengths = CODEC.encode(texts)
        device = torch.device(self.device)
        return to_device(ids, device), to_device(lengths, device)


def trained(step: Step, stream: Stream) -> Iterator[Tensor]:
    """Train on a stream of (images, texts), handing on each batch's images to be counted."""
    for images, texts in stream:
        step(images, *step.encode(texts))
        yield images


class FromLoader:
    """All batches of all epochs of one of inkmill's loaders, augmented on the device.

    Args:
        loader: its batches end on the device.
        seconds: length of the measurement, which is the end of the stream.

    Attributes:
        without_data: once closed, the share of those seconds in which the GPU was idle because no batch was ready.
    """

    def __init__(self, loader: Any, seconds: float) -> None:
        self.loader = loader
        self.without_data = 0.0
        self._seconds = seconds
        # At each batch: the time, and the seconds without data until then. Which of them lie in the windows is known
        # only at the end, since the length of the warm-up is not known here.
        self._seen: list[tuple[float, float]] = []
        self._stream = self._all()

    def __iter__(self) -> Stream:
        return self._stream

    def _all(self) -> Stream:
        while True:
            for batch in self.loader:
                self._seen.append((perf_counter(), float(self.loader.stats.stalled_s)))
                yield _augmented(batch), batch.texts

    def close(self) -> None:
        """Close the loader."""
        self._stream.close()  # type: ignore[attr-defined]
        self.loader.close()
        for note in self.loader.stats.notes:
            print(note, file=sys.stderr)
        if self._seen:  # else it failed before the first batch, and that error is on its way up
            ended, stalled = self._seen[-1]
            began, before = next(one for one in self._seen if one[0] >= ended - self._seconds)
            self.without_data = (stalled - before) / max(ended - began, 1e-9)


def _augmented(batch: Batch) -> Tensor:
    with torch.no_grad():
        return augmented(batch)


def classic_stream(task: LoadTask) -> Iterator[tuple[Tensor, list[str]]]:
    """Return the images of the classic loader with labels that cost nothing."""
    texts = [task.source.target(row).value for row in range(task.batch_size)]  # type: ignore[union-attr]
    for images in baseline.stream(task):
        yield images, texts


def streams(task: LoadTask, seconds: float) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return, by row, what makes a stream, and the images to consume before the clock runs."""

    def workers(cache: str, augment_on: Any = "gpu") -> FromLoader:
        # On a CPU the workers augment: there is no device that could do it better.
        augment_on = augment_on if task.device == "cuda" else "cpu"
        return FromLoader(open_case(task, "workers", cache, augment_on), seconds)

    def device() -> FromLoader:
        # Opened by its class: the registry refuses it without a GPU, where --smoke runs it too.
        loader = ResidentLoader(plan_for(task, "gpu"), task.device, task.workers)
        return FromLoader(DeviceLoader(loader, task.device), seconds)

    def repeated() -> Stream:
        stream = workers("none")
        batch = next(iter(stream))
        stream.close()
        while True:
            yield batch

    # A whole epoch first: then caches are full, and workers have prefetched as much as they may.
    few, epoch = 4 * task.batch_size, len(task.source)
    return {
        "repeated": (repeated, few),
        "streamed": (lambda: workers("none"), epoch),
        "ram": (lambda: workers("ram"), epoch),
        "streamed, cpu": (lambda: workers("none", "cpu"), epoch),
        "ram, cpu": (lambda: workers("ram", "cpu"), epoch),
        "device": (device, epoch),
        "repeated again": (repeated, few),
    }


def rows_of(model: Model, source: Source, folder: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of one model, the step on a repeated batch first, and again after those that it is beside."""
    task = LoadTask(source, folder, model.batch_size, args.workers, args.device, "strong", model.resize)
    base = 0.0
    # 1. The fast recipe, one step object for all rows: it is compiled once, in the warm-up of the first row.
    with as_in_training(args.device):
        step = Step(model, args.device, fast=True)
        for name, (make, warm_images) in streams(task, args.seconds).items():
            row = _row(model, name, model.batch_size, step, make(), args.seconds, warm_images)
            base = base or row["images_per_s"]
            yield row | {"of_step": round(row["images_per_s"] / base, 3)}
        del step
    # 2. The command, after this process has freed the GPU's memory.
    yield of_the_command(model, source, folder, args, base)
    # 3. The classic recipe, with the batch size that its users train with.
    classic = replace(task, batch_size=min(CLASSIC_BATCH, model.batch_size))
    slow = Step(model, args.device, fast=False)
    warm = 4 * classic.batch_size
    yield _row(model, "classic", classic.batch_size, slow, classic_stream(classic), args.seconds, warm)


@contextmanager
def as_in_training(device: str) -> Iterator[None]:
    """Set torch up as `inkmill train` does by default, and as it was again."""
    threads, cudnn, products = torch.get_num_threads(), torch.backends.cudnn, torch.get_float32_matmul_precision()
    before = cudnn.benchmark, cudnn.deterministic
    if device == "cuda":
        set_up_torch(TrainSpec())
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        cudnn.benchmark, cudnn.deterministic = before
        torch.set_float32_matmul_precision(products)


def of_the_command(model: Model, source: Any, folder: Path, args: argparse.Namespace, base: float) -> dict[str, Any]:
    """Return the row of `inkmill train`."""
    settings = {"num_epochs": 2 if args.smoke else 5, "compile": model.compile}
    speeds = epochs_of_the_command(model, source.folder, folder / model.name, args.workers, settings)
    speed = median(speeds)
    return {
        "model": model.name,
        "data": "inkmill train",
        "batch_size": model.batch_size,
        "images_per_s": round(speed, 1),
        "spread": round((max(speeds) - min(speeds)) / speed, 3),
        "of_step": round(speed / base, 3),
    }


def epochs_of_the_command(
    model: Model, crops: Path, results: Path, workers: int, settings: dict[str, Any]
) -> list[float]:
    """Train by the command in a process of its own; return images/s of the epochs after the first, which compiles."""
    epochs = settings["num_epochs"]
    spec = {
        "results_dir": str(results),
        "model": model.spec.model_dump(exclude_defaults=True),
        "dataset": {
            "train": str(crops),
            "val_fraction": 0.01,
            "batch_size": model.batch_size,
            "workers": workers,
            "augmentation": strong_spec().model_dump(exclude_defaults=True),
        },
        "train": {"validation_interval": epochs, "checkpoint_interval": epochs, **settings},
    }
    results.mkdir(parents=True)
    written = results / "spec.yaml"
    written.write_text(json.dumps(spec), encoding="utf-8")  # JSON is YAML
    subprocess.run([sys.executable, "-m", "inkmill", "train", "-e", str(written)], check=True, stdout=2)  # to stderr
    lines = (results / "train" / "status.json").read_text(encoding="utf-8").splitlines()
    speeds = [line["kpi"]["images_per_s"] for line in map(json.loads, lines) if "images_per_s" in line.get("kpi", {})]
    return speeds[1:]


def _row(
    model: Model, name: str, batch_size: int, step: Step, stream: Any, seconds: float, warm_images: int
) -> dict[str, Any]:
    steps = trained(step, iter(stream))
    try:
        result: Measured = measure(steps, seconds, warm_images)
    finally:
        steps.close()  # type: ignore[attr-defined]
        stream.close()
    idle = {"without_data": round(stream.without_data, 4)} if isinstance(stream, FromLoader) else {}
    return idle | {
        "model": model.name,
        "parameters": step.parameters,
        "data": name,
        "batch_size": batch_size,
        "images_per_s": round(result.images_per_s, 1),
        "spread": round(result.spread, 3),
        "first_s": round(result.first_s, 1),
    }


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add each row's speed over the classic recipe's of the same model."""
    classic = {row["model"]: row["images_per_s"] for row in rows if row["data"] == "classic"}
    return [row | {"times_classic": round(row["images_per_s"] / classic[row["model"]], 2)} for row in rows]


def show(rows: list[dict[str, Any]], machine: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(title=stamp_line(machine), title_justify="left")
    for name in ("model", "data", "batch", "images/s", "spread", "of step", "without data", "times classic"):
        table.add_column(name)
    for row in rows:
        of_step = f"{row['of_step']:.3f}" if "of_step" in row else ""
        without = f"{row['without_data']:.1%}" if "without_data" in row else ""
        speed, spread = f"{row['images_per_s']:,.0f}", f"{row['spread']:.1%}"
        times = f"{row['times_classic']:.1f}"
        table.add_row(row["model"], row["data"], str(row["batch_size"]), speed, spread, of_step, without, times)
    Console().print(table)


def steps_alone(chosen: list[Model], machine: dict[str, Any], args: argparse.Namespace) -> int:
    """Measure and print the step alone at several batch sizes."""
    rows: list[dict[str, Any]] = []
    with as_in_training(args.device):
        for model in chosen:
            flops = flops_of(model, args.device)
            for size in args.batch_size:
                for how in args.steps:
                    row = step_alone(replace(model, batch_size=size, compile=STEPS[how]), args, flops)
                    rows.append({"model": model.name, "batch_size": size, "step": how, **row})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    table = Table(title=stamp_line(machine), title_justify="left")
    for name in ("model", "batch", "step", "images/s", "spread", "MFU", "start, s"):
        table.add_column(name)
    for row in rows:
        speed, spread = f"{row['images_per_s']:,.0f}", f"{row['spread']:.1%}"
        used = f"{row['mfu']:.1%}" if row["mfu"] is not None else ""
        first = f"{row['first_s']:.1f}"
        table.add_row(row["model"], str(row["batch_size"]), row["step"], speed, spread, used, first)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


def step_alone(model: Model, args: argparse.Namespace, flops: float) -> dict[str, Any]:
    """Return the row of one step: `args.seconds` of it in windows, after the steps that compile and capture."""
    began = perf_counter()
    step, size = Step(model, args.device, fast=True), model.batch_size
    resize = model.resize
    images = torch.randint(0, 256, (size, resize.height, resize.width, 3), dtype=torch.uint8, device=args.device)
    targets = step.encode(["train", "speed", "of4096", "crops"] * (size // 4))

    def window(steps: int) -> float:
        start = perf_counter()
        for _ in range(steps):
            step(images, *targets)
        if args.device == "cuda":
            torch.cuda.synchronize()
        return perf_counter() - start

    window(4)
    first_s = perf_counter() - began
    steps = max(3, round(args.seconds / WINDOWS / (window(3) / 3)))
    speeds = [size * steps / window(steps) for _ in range(WINDOWS)]
    speed = median(speeds)
    peak = PEAKS.get(torch.cuda.get_device_name()) if args.device == "cuda" else None
    return {
        "images_per_s": round(speed, 1),
        "spread": round((max(speeds) - min(speeds)) / speed, 3),
        "mfu": None if peak is None else round(speed * flops / peak, 4),
        "first_s": round(first_s, 1),
    }


def flops_of(model: Model, device: str) -> float:
    """Return the floating-point operations of training on one image: products, convolutions, forward and backward."""
    module = build_recognizer(model.spec, CODEC.num_classes, 25).to(device).train()
    images = torch.zeros(2, 3, model.spec.input_height, model.spec.input_width, device=device)
    ids, lengths = (torch.from_numpy(array).to(device) for array in CODEC.encode(["ab", "cd"]))
    with FlopCounterMode(display=False) as counter:
        module.loss(module(images, ids), (ids, lengths)).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / 2


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--model", choices=("OCRNet", "TPS", "ConvMix"), help="this one alone")
    parser.add_argument("--compile", choices=("auto", "true", "false"), default="auto", help="train.compile")
    parser.add_argument("--batch-size", type=int, nargs="+", help="measure the step alone, at these sizes")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS), help="with --batch-size")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.smoke:
        args.images, args.seconds, args.workers = 64, 0.05, 0
    elif args.device == "cpu":
        print("this measures GPUs, and there is none here: use --smoke to see it run", file=sys.stderr)
        return 2
    machine = machine_stamp()
    compile = {"true": True, "false": False}.get(args.compile, args.compile)
    chosen = [model for model in models(args.smoke, compile) if args.model in (None, model.name)]
    if args.batch_size:
        return steps_alone(chosen, machine, args)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="inkmill-train-speed-") as folder:
        # Whole batches only: a short one at the end of each epoch would be compiled for by itself.
        images = args.images - args.images % max(model.batch_size for model in chosen)
        source = LmdbSource(write_crops(Path(folder) / "crops", images))
        for model in chosen:
            for row in rows_of(model, source, Path(folder), args):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    rows = compared(rows)
    show(rows, machine)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
