"""How many images a second a model trains on, data loading left out: forward, loss, backward and optimiser step.

    python benchmarks/model_step.py --device cpu --threads 2 --batch 64 --size 1x32x96 Tiny:none ResNet:none
    python benchmarks/model_step.py --device cuda --batch 1024 --size 3x32x128 ConvMix:none ResNet:BiLSTM

Each model is BACKBONE:SEQUENCE[:PREDICTION]. Rounds of all the models alternate, so that a busy machine slows all of
them alike; the table gives the median round and the range. It runs on a CPU or one GPU, --rounds times --steps steps a
model: seconds on a GPU, a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

from inkmill.config.model import ModelSpec
from inkmill.tasks.recognition.model import Recognizer, build_recognizer

CLASSES, LABEL = 38, 8


def make_step(name: str, args: argparse.Namespace) -> tuple[Recognizer, Callable[[], None]]:
    """Return the model and a function that does one training step on fixed random images."""
    backbone, sequence, *rest = name.split(":")
    channels, height, width = map(int, args.size.split("x"))
    prediction = rest[0] if rest else "CTC"
    spec = ModelSpec.model_validate(
        {
            "backbone": backbone,
            "sequence": sequence,
            "prediction": prediction,
            "input_channel": channels,
            "input_height": height,
            "input_width": width,
        }
    )
    recognizer = build_recognizer(spec, CLASSES, LABEL).to(args.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(recognizer.parameters(), lr=1e-4, fused=True)
    images = torch.rand(args.batch, channels, height, width, device=args.device) * 2 - 1
    images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.randint(2, CLASSES, (args.batch, LABEL), device=args.device)
    lengths = torch.full((args.batch,), LABEL, device=args.device)
    run = torch.compile(recognizer) if args.compile else recognizer

    def step() -> None:
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            logits = run(images, targets)
        loss = recognizer.loss(logits, (targets, lengths))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return recognizer, step


def seconds(step: Callable[[], None], steps: int, device: str) -> float:
    """Return the wall time of `steps` steps."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Time the models named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", default="1x32x96", help="CxHxW")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps a round")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{platform.processor()} x{args.threads}"
    print(f"torch {torch.__version__}, {machine}, batch {args.batch} of {args.size}, compile={args.compile}")
    entries = [(name, *make_step(name, args)) for name in args.models]
    for _, _, step in entries:
        seconds(step, 3, args.device)
    rates: dict[str, list[float]] = {name: [] for name in args.models}
    for _ in range(args.rounds):
        for name, _, step in entries:
            rates[name].append(args.batch * args.steps / seconds(step, args.steps, args.device))
    for name, recognizer, _ in entries:
        size = sum(p.numel() for p in recognizer.parameters()) / 1e6
        low, middle, high = min(rates[name]), statistics.median(rates[name]), max(rates[name])
        print(f"{name:28} {size:6.2f} M params  {middle:9,.0f} img/s  ({low:,.0f} to {high:,.0f})")


if __name__ == "__main__":
    main()
