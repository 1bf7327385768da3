"""What pruning gained: parameters, multiply-accumulates and images a second, before and after, in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from inkmill.deploy.prune.model import Layer
from inkmill.runtime.speed import BATCHES, ROUNDS, in_turn
from inkmill.runtime.torch_reader import in_words
from inkmill.tasks.recognition.model import Recognizer


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers training changes."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: Recognizer) -> int:
    """Return the multiply-accumulates of convolutions, linear layers and LSTMs for one image of the input size.

    Norms, activations, pooling, resampling and the products inside attention are not counted; an attention head is
    counted with all its steps.
    """
    total = 0

    def add(part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal total
        total += _macs(part, inputs[0], output)

    kinds = nn.Conv2d | nn.Linear | nn.LSTM | nn.LSTMCell
    hooks = [part.register_forward_hook(add) for part in model.modules() if isinstance(part, kinds)]
    try:
        with torch.no_grad():
            device = next(model.parameters()).device
            steps = model.head.steps(1)
            targets = torch.zeros(1, steps, dtype=torch.int64, device=device) if model.head.taught_by_targets else None
            model(_images(model, 1), targets)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _macs(part: nn.Module, images: Tensor, output: Any) -> int:
    if isinstance(part, nn.Conv2d):
        return int(output.numel()) * part.weight[0].numel()
    if isinstance(part, nn.Linear):
        return int(output.numel()) * part.in_features
    weights = sum(tensor.numel() for name, tensor in part.named_parameters() if name.startswith("weight"))
    return images.shape[0] * (images.shape[1] if isinstance(part, nn.LSTM) else 1) * weights


def _images(model: Recognizer, batch: int) -> Tensor:
    spec = model.spec
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, spec.input_channel, spec.input_height, spec.input_width, generator=generator)
    return (2 * images - 1).to(next(model.parameters()).device)


@torch.inference_mode()
def _read(model: Recognizer, images: Tensor) -> None:
    model.read(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)


def compare(whole: Recognizer, pruned: Recognizer) -> dict[str, Any]:
    """Return the figures of both models, under `before` and `after`, and the device that the speeds are of.

    Decoding to text and the way of the pictures to the device are not in the speeds.
    """
    models = {"before": whole, "after": pruned}
    figures: dict[str, Any] = {"device": in_words(next(whole.parameters()).device)}
    for when, model in models.items():
        figures[when] = {"parameters": count_parameters(model), "macs": count_macs(model), "images_per_second": {}}
    for batch in BATCHES:
        works = [partial(_read, model, _images(model, batch)) for model in models.values()]
        for when, speed in zip(models, in_turn(works, batch), strict=True):
            figures[when]["images_per_second"][f"batch_{batch}"] = speed
    return figures


def show(console: Console, report: dict[str, Any], layers: Sequence[Layer]) -> None:
    """Print the figures before and after as a table, and how many channels went."""
    table = Table("", title=None)
    for heading in ("before", "after", "after / before"):
        table.add_column(heading, justify="right")
    before, after = report["before"], report["after"]
    table.add_row("parameters", *_row(before["parameters"], after["parameters"], _millions))
    table.add_row("multiply-accumulates an image", *_row(before["macs"], after["macs"], _millions))
    for batch in BATCHES:
        speeds = [side["images_per_second"][f"batch_{batch}"] for side in (before, after)]
        shown = [f"{speed['median']:,.0f} ({speed['least']:,.0f}-{speed['most']:,.0f})" for speed in speeds]
        table.add_row(f"images/s, batch {batch}", *shown, f"{speeds[1]['median'] / speeds[0]['median']:.2f}")
    for name, key in (("word accuracy", "word_accuracy"), ("CER", "cer")):
        if key in before:
            table.add_row(name, *(f"{side[key]:.2%}" for side in (before, after)), "")
    console.print(table)
    coupled = {layer.group: layer for layer in layers}.values()
    console.print(
        f"{sum(layer.after for layer in coupled):,} of {sum(layer.before for layer in coupled):,} channels stay, in "
        f"{len(coupled)} groups of {len(layers)} layers; images/s on {report['device']}, median of {ROUNDS} rounds "
        "in turn (least-most)",
        highlight=False,
    )


def _row(before: int, after: int, shown: Callable[[int], str]) -> tuple[str, str, str]:
    return shown(before), shown(after), f"{after / before:.3f}"


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"
