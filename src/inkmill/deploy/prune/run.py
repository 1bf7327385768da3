"""`prune`: a reader with fewer channels, in the same kind of file, to be retrained with `train`.

Channels go, not single weights: what is left is a smaller dense network, which is faster everywhere. The file needs no
graph beside it (see inkmill.nn.narrow).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from inkmill.config.load import require
from inkmill.config.results import open_results
from inkmill.config.spec import Spec
from inkmill.config.tasks import PruneSetting
from inkmill.crypt import Key, find_key, sealed, told
from inkmill.deploy.outputs import comparison_table, mebibytes, output_path, print_line, speed_rows, with_step
from inkmill.deploy.prune.channels import PrunedLayer, prune_model
from inkmill.errors import ConfigError
from inkmill.files import write_bytes_atomic, write_json_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import with_speeds, write_model_card
from inkmill.modelfile.torch_file import MAX_WHOLE, load_model, save_model
from inkmill.runtime.evaluate import as_metrics, open_tests, read_tests, score_rows
from inkmill.runtime.speed import BATCHES, ROUNDS, in_turn, medians
from inkmill.runtime.torch_reader import TorchReader, device_name
from inkmill.tasks.model import TaskModel


def prune(spec: Spec, *, console: Console | None = None) -> Path:
    """Prune `prune.checkpoint`, write `prune.pruned_file` and metrics.json, and return the file's path.

    Args:
        spec: `prune.checkpoint` is needed; without pruned_file the file's name is the checkpoint's with _pruned. Where
            the spec names test sets (`evaluate.test`), both readers are scored on them.
        console: where the table goes.

    Raises:
        InkmillError: no model, one that cannot be pruned, nothing to prune, or no place to write.
    """
    console = console or Console(quiet=True)
    settings, key = spec.prune.prune_setting, find_key(spec.encryption_key)
    checkpoint = Path(require(spec, "prune.checkpoint", "prune"))
    default = f"{checkpoint.stem}_pruned.safetensors"
    path = output_path("prune.pruned_file", spec.prune.pruned_file, checkpoint, default, (".safetensors", ".pth"))
    device = _device(spec.prune.gpu_id)
    with open_results(spec, "prune") as results:
        if line := told(key):
            print_line(console, line)
        # 1. The whole reader; a copy of it is pruned.
        whole, header = load_model(checkpoint, device, key)
        _refuse(whole, header, checkpoint)
        tests = open_tests(spec)
        model = deepcopy(whole)
        whole_spec = whole.spec.model_copy(update={"backbone_pretrained": False})
        build = partial(header.open_task().build, whole_spec)
        layers = prune_model(model, settings, build)

        # 2. Both side by side: parameters, multiply-accumulates, speed.
        report: dict[str, Any] = {
            "checkpoint": str(checkpoint),
            "pruned_file": str(path),
            "setting": settings.model_dump(mode="json"),
            **compare(whole, model),
        }
        pruned_header = _header(header, settings, checkpoint, report)
        pruned_header = with_speeds(pruned_header, report["device"], medians(report["after"]["images_per_second"]))
        _write(path, model, pruned_header, key)

        # 3. And their accuracy, where the spec names test sets.
        if tests:
            for when, reader in (("before", TorchReader(whole, header)), ("after", TorchReader(model, pruned_header))):
                rows = read_tests(reader, spec, tests, console)
                scores, per_set = score_rows(reader.task, rows, list(tests))
                report[when] |= {**as_metrics(scores, per_set), "headline": scores.headline()}
        report["layers"] = [{"name": one.name, "before": one.before, "after": one.after} for one in layers]
        write_json_atomic(results.folder / "metrics.json", report)
        show(console, report, layers)
        retrain = f"retrain it with train.pretrained_model_path={path} and another results_dir"
        print_line(console, f"{path}: {mebibytes(path)}; {retrain}")
    return path


def _device(gpu_id: int) -> torch.device:
    count = torch.cuda.device_count()
    if not count:
        return torch.device("cpu")
    if gpu_id >= count:
        raise ConfigError(f"prune.gpu_id={gpu_id}, and this machine's GPUs are 0 to {count - 1}")
    return torch.device("cuda", gpu_id)


def _refuse(whole: TaskModel, header: ModelHeader, checkpoint: Path) -> None:
    if header.model.quantize:
        raise ConfigError(f"{checkpoint} is quantised: prune the reader that it was made from, and quantise afterwards")
    if count_parameters(whole) > MAX_WHOLE:
        raise ConfigError(f"{checkpoint} has more than {MAX_WHOLE:,} parameters, which is more than prune handles")


def _header(header: ModelHeader, settings: PruneSetting, checkpoint: Path, report: dict[str, Any]) -> ModelHeader:
    """Return the header with this step in its history, and its own number of parameters."""
    parameters = {when: report[when]["parameters"] for when in ("before", "after")}
    setting = settings.model_dump(mode="json", exclude_none=True)
    changed = with_step(header, "prune", checkpoint, setting=setting, parameters=parameters)
    return changed.model_copy(update={"provenance": {**changed.provenance, "parameters": parameters["after"]}})


def _write(path: Path, model: TaskModel, header: ModelHeader, key: Key | None) -> None:
    if path.suffix == ".safetensors":
        save_model(path, model.state_dict(), header, key)
        return
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    buffer = io.BytesIO()
    torch.save({"header": header.to_json(), "model": weights}, buffer)
    write_bytes_atomic(path, sealed(buffer.getvalue(), key))
    write_model_card(path, header)


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers training changes."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: TaskModel) -> int:
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
            model.full_pass(_images(model, 1))
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


def _images(model: TaskModel, batch: int) -> Tensor:
    spec = model.spec
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, spec.input_channel, spec.input_height, spec.input_width, generator=generator)
    return (2 * images - 1).to(next(model.parameters()).device)


@torch.inference_mode()
def _forward(model: TaskModel, images: Tensor) -> None:
    model(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)


def compare(whole: TaskModel, pruned: TaskModel) -> dict[str, Any]:
    """Return the figures of both models, under `before` and `after`, and the device that the speeds are of.

    The speeds are those of the forward pass, without the copy of the images to the device and without decoding.
    """
    models = {"before": whole, "after": pruned}
    figures: dict[str, Any] = {"device": device_name(next(whole.parameters()).device)}
    for when, model in models.items():
        figures[when] = {"parameters": count_parameters(model), "macs": count_macs(model), "images_per_second": {}}
    for batch in BATCHES:
        works = [partial(_forward, model, _images(model, batch)) for model in models.values()]
        for when, speed in zip(models, in_turn(works, batch), strict=True):
            figures[when]["images_per_second"][f"batch_{batch}"] = speed
    return figures


def show(console: Console, report: dict[str, Any], layers: Sequence[PrunedLayer]) -> None:
    """Print the figures before and after as a table, and how many channels went."""
    table = comparison_table("before", "after", "after / before")
    before, after = report["before"], report["after"]
    for name, key in (("parameters", "parameters"), ("multiply-accumulates an image", "macs")):
        counts = before[key], after[key]
        table.add_row(name, *(f"{count / 1e6:,.2f} M" for count in counts), f"{counts[1] / counts[0]:.3f}")
    for row in speed_rows(before, after):
        table.add_row(*row)
    for key in before.get("headline", ()):
        table.add_row(key.replace("_", " "), *(f"{side['headline'][key]:.2%}" for side in (before, after)), "")
    console.print(table)
    coupled = {layer.group: layer for layer in layers}.values()  # one layer stands for its group
    print_line(
        console,
        f"{sum(layer.after for layer in coupled):,} of {sum(layer.before for layer in coupled):,} channels stay, in "
        f"{len(coupled)} groups of {len(layers)} layers; images/s on {report['device']}, median of {ROUNDS} rounds "
        "in turn (least-most)",
    )
