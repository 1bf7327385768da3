"""`prune`: a reader with fewer channels, in the same kind of file, to be retrained with `train`.

Channels go, not single weights: what is left is a smaller dense network, which is faster everywhere. The file needs no
graph beside it (see inkmill.nn.narrow).
"""

from __future__ import annotations

import io
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from inkmill.config.load import require
from inkmill.config.results import open_results
from inkmill.config.spec import Spec
from inkmill.config.tasks import PruneSetting
from inkmill.crypt import Key, find_key, sealed
from inkmill.deploy.prune.compare import compare, count_parameters, show
from inkmill.deploy.prune.model import prune_model
from inkmill.errors import ConfigError
from inkmill.files import write_bytes_atomic, write_json_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step, with_speeds, write_model_card
from inkmill.modelfile.torch_file import MAX_WHOLE, load_reader, save_reader
from inkmill.runtime.evaluate import open_tests, read_tests, scores_of
from inkmill.runtime.speed import medians
from inkmill.runtime.torch_reader import TorchReader
from inkmill.tasks.recognition.model import Recognizer


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
    checkpoint = Path(require(spec, "prune.checkpoint", "prune"))
    path, device, key = _place(spec, checkpoint), _device(spec.prune.gpu_id), find_key(spec.encryption_key)
    with open_results(spec, "prune") as results:
        whole, card = load_reader(checkpoint, device, key)
        _refuse(whole, card, checkpoint)
        tests = open_tests(spec)
        model = deepcopy(whole)
        layers = prune_model(model, spec.prune.prune_setting)
        report: dict[str, Any] = {
            "checkpoint": str(checkpoint),
            "pruned_file": str(path),
            "setting": spec.prune.prune_setting.model_dump(mode="json"),
            **compare(whole, model),
        }
        pruned_card = _card(card, spec.prune.prune_setting, checkpoint, whole, model)
        pruned_card = with_speeds(pruned_card, report["device"], medians(report["after"]["images_per_second"]))
        _write(path, model, pruned_card, key)
        if tests:
            for when, reader in (("before", TorchReader(whole, card)), ("after", TorchReader(model, pruned_card))):
                report[when] |= scores_of(read_tests(reader, spec, tests, console), list(tests))
        report["layers"] = [{"name": one.name, "before": one.before, "after": one.after} for one in layers]
        write_json_atomic(results.folder / "metrics.json", report)
        show(console, report, layers)
        console.print(
            f"{path}: {path.stat().st_size / 2**20:.1f} MiB; retrain it with "
            f"train.pretrained_model_path={path} and another results_dir",
            highlight=False,
            markup=False,
        )
    return path


def _place(spec: Spec, checkpoint: Path) -> Path:
    default = checkpoint.with_name(f"{checkpoint.stem}_pruned.safetensors")
    path = Path(spec.prune.pruned_file) if spec.prune.pruned_file else default
    if path.suffix not in (".safetensors", ".pth"):
        raise ConfigError(
            f"prune.pruned_file={path}: expected a name that ends in .safetensors, or in .pth as TAO's do"
        )
    if path.resolve() == checkpoint.resolve():
        raise ConfigError(f"prune.pruned_file={path} is the checkpoint itself, which would be lost: give another name")
    return path


def _device(gpu_id: int) -> torch.device:
    count = torch.cuda.device_count()
    if not count:
        return torch.device("cpu")
    if gpu_id >= count:
        raise ConfigError(f"prune.gpu_id={gpu_id}, and this machine's GPUs are 0 to {count - 1}")
    return torch.device("cuda", gpu_id)


def _refuse(whole: Recognizer, card: ModelHeader, checkpoint: Path) -> None:
    if card.model.quantize:
        raise ConfigError(f"{checkpoint} is quantised: prune the reader it was made from, and quantise afterwards")
    if count_parameters(whole) > MAX_WHOLE:
        raise ConfigError(f"{checkpoint} has more than {MAX_WHOLE:,} parameters, which is more than prune handles")


def _card(
    card: ModelHeader, settings: PruneSetting, checkpoint: Path, whole: Recognizer, model: Recognizer
) -> ModelHeader:
    """Return the card with this step in its history; the scores of the whole reader are not those of the pruned one."""
    told = {name: value for name, value in card.provenance.items() if name not in ("scores", "speeds")}
    parameters = {"before": count_parameters(whole), "after": count_parameters(model)}
    entry = step(
        "prune",
        source=checkpoint.name,
        setting=settings.model_dump(mode="json", exclude_none=True),
        parameters=parameters,
    )
    told |= {"made": [*card.history(), entry], "parameters": parameters["after"]}
    return card.model_copy(update={"provenance": told})


def _write(path: Path, model: Recognizer, card: ModelHeader, key: Key | None) -> None:
    if path.suffix == ".safetensors":
        save_reader(path, model.state_dict(), card, key)
        return
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    buffer = io.BytesIO()
    torch.save({"reader": card.to_json(), "model": weights}, buffer)
    write_bytes_atomic(path, sealed(buffer.getvalue(), key))
    write_model_card(path, card)
