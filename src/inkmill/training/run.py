"""`train`: from a spec to a model in one file."""

from __future__ import annotations

import json
import logging
import os
import platform
import secrets
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from rich.console import Console

from inkmill.config.results import Results, open_results, results_folder
from inkmill.config.spec import Spec
from inkmill.config.stages import stages_of
from inkmill.config.train import TrainSpec
from inkmill.crypt import Key, find_key, told
from inkmill.data.loaders import Stats
from inkmill.errors import ConfigError, ModelFileError, TrainingError
from inkmill.files import write_json_atomic
from inkmill.logs import silence_logging
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import fitting_cuts, read_any
from inkmill.nn.narrow import cut, find_cuts
from inkmill.nn.simulate import is_simulated
from inkmill.perf.plan import with_plan
from inkmill.perf.watch import watch_loader
from inkmill.tasks import find_task
from inkmill.tasks.base import Say
from inkmill.tasks.model import TaskModel
from inkmill.training.batches import open_loaders
from inkmill.training.checkpoint import choose, digest
from inkmill.training.finetune import start_from
from inkmill.training.int8 import start_simulating
from inkmill.training.loop import Origin, Progress, TrainingLoop
from inkmill.training.prepare import Prepared, prepare
from inkmill.training.progress import Reporter, draw_curves
from inkmill.training.ranks import fail_fast

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True)
class TrainResult:
    """Where a trained model is and how good it is.

    Attributes:
        model: the model's file.
        folder: checkpoints, curves, metrics.
        scores: the task's figures of the best validation by name, 0..1, the primary one first: `word_accuracy` and
            `cer` where text is read.
        metrics: what metrics.json holds.
    """

    model: Path
    folder: Path
    scores: dict[str, float]
    metrics: dict[str, Any]


def train(spec: Spec, *, console: Console | None = None) -> TrainResult:
    """Train a model; a run that was interrupted continues where it stopped.

    Args:
        spec: the resolved spec; one with `stages` is trained stage by stage, and those that are done are passed over.
        console: where progress goes; None keeps quiet.

    Raises:
        InkmillError: anything a user can fix.
        KeyboardInterrupt: Ctrl-C, after a checkpoint was saved.
    """
    console = console or Console(quiet=True)
    stages = stages_of(spec)
    # One Fabric for all stages: processes are launched once.
    fabric, note = launch(next(iter(stages.values())).train)
    result: TrainResult | None = None
    for name, stage in stages.items():
        if result is not None and _first_weights(stage) is None:
            stage.train.pretrained_model_path = str(result.model)
        done = _done(stage) if name else None
        if done is not None:
            result = done
        else:
            heading = f"stage {name}\n{note}" if name else note
            result = _train_stage(stage, fabric, console, heading)
        if name and fabric.is_global_zero:
            shown = ", ".join(f"{figure.replace('_', ' ')} {value:.2%}" for figure, value in result.scores.items())
            console.print(f"stage {name} is done: {shown}; {result.model}", markup=False, highlight=False)
    assert result is not None
    return result


def _done(spec: Spec) -> TrainResult | None:
    """Return the result of a stage that has trained to its end, None where there is more to do.

    Its weights may be gone: they are needed where the next stage begins, and that one may be under way.
    """
    folder = results_folder(spec, "train")
    model, written = folder / "best_accuracy.safetensors", folder / "metrics.json"
    if not written.is_file():
        return None
    metrics = json.loads(written.read_text("utf-8"))
    if metrics.get("epochs", 0) < spec.train.num_epochs:
        return None
    names = find_task(spec.task).figures
    return TrainResult(model, folder, {name: metrics[name] for name in names}, metrics)


def _train_stage(spec: Spec, fabric: Fabric, console: Console, note: str) -> TrainResult:
    if not fabric.is_global_zero:
        with fail_fast(fabric, lambda sentence: None):
            return _train(spec, fabric, None, console, "")
    results = open_results(spec, "train")
    with fail_fast(fabric, lambda sentence: results.status("FAILURE", sentence)), results:
        return _train(spec, fabric, results, console, note)


def _train(spec: Spec, fabric: Fabric, results: Results | None, console: Console, note: str) -> TrainResult:
    folder = results.folder if results is not None else results_folder(spec, "train")
    say = _printer(console, results)
    say(note)
    if spec.wandb:
        say("wandb is accepted and has no effect here")
    # 1. What does the run resume from? Nothing, where it starts.
    key = find_key(spec.encryption_key)
    if line := told(key):
        say(line)
    checkpoint, state = choose(folder, spec.train.resume_training_checkpoint_path, key)
    seed = _seed(spec, fabric, state, say)
    # 2. Data and task. Rank 0 checks the data and keeps the verdict, the others read it.
    if not fabric.is_global_zero:
        fabric.barrier()
    prepared = prepare(spec, folder / "check", say)
    if fabric.is_global_zero:
        fabric.barrier()
    # 3. The network, with the weights that it starts from.
    if checkpoint is None or state is None:
        model, origin = _new_model(spec, prepared, key, say)
        if spec.model.quantize:
            start_simulating(model.to(fabric.device), spec, prepared, say)
    else:
        origin = _origin(spec, prepared, checkpoint, state)
        model = _resumed_model(spec, prepared, state, key, say)
    # 4. Loaders, by the plan that suits this machine.
    spec = with_plan(spec, prepared.train.source, fabric.device, fabric.world_size, say)
    with open_loaders(spec, prepared, fabric, seed) as loaders:
        ranks_here = max(1, fabric.world_size // spec.train.num_nodes)
        watch = watch_loader(loaders[0], spec, ranks_here)
        figures = prepared.task.figures
        settings = (spec.train.num_epochs, figures, fabric.world_size, watch, _smaller(spec, fabric))
        with closing(Reporter(console, results, *settings)) as reporter:
            for loader in (loaders[0], *loaders[1].values()):
                reporter.notes(loader.stats)
            # 5. Train.
            loop = TrainingLoop(fabric, spec, model, prepared, loaders, folder, reporter, key, origin)
            if state is not None:
                loop.resume(state)
                at = loop.progress
                say(f"resuming from {checkpoint}: epoch {at.epoch + 1}, batch {at.batches}, step {at.step}")
                state = None  # as large as the model and its optimiser
            progress = loop.run()
            # 6. Metrics and curves.
            return _finish(prepared, progress, loaders[0].stats, folder, fabric, reporter)


def _smaller(spec: Spec, fabric: Fabric) -> str:
    """Return what to say beside a long estimate on a CPU."""
    if fabric.device.type != "cpu" or (spec.model.backbone == "Tiny" and spec.model.sequence == "none"):
        return ""
    return "; on a CPU model.backbone=Tiny model.sequence=none takes a small part of that"


def _printer(console: Console, results: Results | None) -> Say:
    """Return what prints a line on rank 0 and nothing on the others."""
    if results is None:
        return lambda line: None
    return lambda line: console.print(line, markup=False, highlight=False)


def launch(settings: TrainSpec) -> tuple[Fabric, str]:
    """Return a launched Fabric and one line that says what it runs on.

    Raises:
        ConfigError: a GPU that is not there.
    """
    gpus = torch.cuda.device_count() if settings.device != "cpu" and settings.num_gpus else 0
    if settings.device == "gpu" and not gpus:
        raise ConfigError("train.device=gpu, and torch finds no GPU here; use train.device=auto to train on the CPU")
    if not gpus:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's; it trains on CPUs too
        fabric = Fabric(
            accelerator="cpu",
            devices=processes,
            num_nodes=settings.num_nodes,
            strategy="ddp" if "WORLD_SIZE" in os.environ else "auto",
            precision="32-true",
        )
        why = "" if settings.device == "cpu" else " (torch finds no GPU)"
        lower = f"; {settings.precision} needs a GPU" if settings.precision in ("bf16", "fp16") else ""
        fabric.launch()
        return fabric, f"training on the CPU{why}, {fabric.world_size} x {torch.get_num_threads()} threads, fp32{lower}"
    wanted = settings.gpu_ids if len(settings.gpu_ids) >= settings.num_gpus else list(range(settings.num_gpus))
    missing = [number for number in wanted if number >= gpus]
    if missing:
        raise ConfigError(f"train.gpu_ids asks for GPU {missing[0]}, and this machine has {gpus} (0 to {gpus - 1})")
    set_up_torch(settings)
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    several = len(wanted) * settings.num_nodes > 1 or "WORLD_SIZE" in os.environ
    if several and hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
        # Fabric wraps the model on a stream of its own, as DDP's authors advise; torch warns of it in the first step.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    with silence_logging(logging.INFO):  # that it computes in bf16 is said below
        fabric = Fabric(
            accelerator="cuda",
            devices=wanted,
            num_nodes=settings.num_nodes,
            strategy=settings.distributed_strategy if several else "auto",
            precision=cast(Any, PRECISIONS[precision]),
        )
    fabric.launch()
    name = torch.cuda.get_device_name(wanted[0])
    return fabric, f"training on {fabric.world_size} x {name}, {precision}"


def set_up_torch(settings: TrainSpec) -> None:
    """Set what holds for the whole process where it trains on a GPU: threads, cuDNN, precision of products."""
    if "OMP_NUM_THREADS" not in os.environ:
        # With the model on a GPU torch's CPU threads have next to nothing to do, and between two small jobs they spin:
        # on 16 cores they took seven of them, which the loader's processes and the launching of kernels then lacked.
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = settings.cudnn.benchmark
    torch.backends.cudnn.deterministic = settings.cudnn.deterministic
    torch.set_float32_matmul_precision("high" if settings.precision != "fp32" else "highest")


def _seed(spec: Spec, fabric: Fabric, state: dict[str, Any] | None, say: Say) -> int:
    seed = spec.train.seed
    if seed < 0:
        seed = secrets.randbelow(2**31)
        if state is not None:  # a resumed run keeps the order that it began with
            seed = state.get("loader", {}).get("seed", seed)
        seed = int(fabric.broadcast(seed))
        say(f"seed {seed}")
    torch.manual_seed(seed)  # the same on every rank: the weights must start alike
    return seed


def _new_model(spec: Spec, prepared: Prepared, key: Key | None, say: Say) -> tuple[TaskModel, Origin]:
    """Return the network of a run that starts, with fresh or pretrained weights, and where these came from."""
    path = _first_weights(spec)
    if spec.model.quantize and path is None:
        raise ConfigError(
            "model.quantize fine-tunes a trained model with simulated int8: give train.pretrained_model_path=FILE"
        )
    # Simulation begins later, once the trained weights are in.
    model = prepared.task.build(spec.model.model_copy(update={"quantize": False}))
    if path is None:
        _describe(model, spec, prepared, say)
        return model, Origin()
    report = start_from(model, prepared.task, path, spec, key)
    if is_simulated(model) and not spec.model.quantize:
        raise ConfigError(
            f"{path} was trained for int8: fine-tune it with model.quantize=true, or start from the model that it was "
            "made from"
        )
    _describe(model, spec, prepared, say)
    say(f"fine-tuning from {path}")
    for line in report.lines():
        say(f"  {line}")
    return model, Origin(report.history)


def _resumed_model(spec: Spec, prepared: Prepared, state: dict[str, Any], key: Key | None, say: Say) -> TaskModel:
    """Return the network of a run that resumes, whose weights `TrainingLoop.resume` brings."""
    path = _first_weights(spec)
    model = prepared.task.build(spec.model.model_copy(update={"backbone_pretrained": False}))
    _as_narrow_as(state, model, path, key)
    _describe(model, spec, prepared, say)
    return model


def _describe(model: TaskModel, spec: Spec, prepared: Prepared, say: Say) -> None:
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    size = spec.model
    settled = f"{words}, " if (words := prepared.task.described()) else ""
    say(
        f"model: {model.described()}, {millions:.2f} M parameters, {settled}input "
        f"{size.input_channel}x{size.input_height}x{size.input_width} ({size.input_resize})"
    )


def _first_weights(spec: Spec) -> Path | None:
    """Return the file that a run starts from; TAO's keys for special ones mean the same as the general one."""
    model = spec.model
    if model.quantize_model_path and not model.quantize:
        raise ConfigError("model.quantize_model_path starts quantisation-aware training: add model.quantize=true")
    keys = {
        "train.pretrained_model_path": spec.train.pretrained_model_path,
        "model.pruned_graph_path": model.pruned_graph_path,
        "model.quantize_model_path": model.quantize_model_path,
    }
    given = {path for path in keys.values() if path}
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(key for key, path in keys.items() if path)} name different files; a run starts from one: "
            "leave the other key out"
        )
    return Path(given.pop()) if given else None


def _as_narrow_as(state: dict[str, Any], model: TaskModel, path: Path | None, key: Key | None) -> None:
    """Give `model` the sizes of a checkpoint's layers; refuse one that did not begin with the pruned file `path`."""
    cuts = find_cuts(model.state_dict(), state.get("model", {}))
    cut(model, cuts)
    if path is None or not path.is_file():  # what a run began with may be gone by now
        return
    weights, header = read_any(path, key)
    pruned = fitting_cuts(path, header, weights) if header is not None else {}
    known = model.state_dict().keys()  # without the batch norms of the file where int8 is simulated
    if any(cuts.get(name) != less for name, less in pruned.items() if name in known):
        raise ConfigError(
            f"results_dir holds the checkpoint of a run that began with another model than the pruned {path}: give "
            "another results_dir, or leave the file out to resume that run"
        )


def _origin(spec: Spec, prepared: Prepared, path: Path, state: dict[str, Any]) -> Origin:
    """Return where a checkpoint's run started; refuse a checkpoint of another run.

    Raises:
        ModelFileError: the file is no checkpoint of training.
        ConfigError: its run has another network, task or optimiser.
    """
    if "progress" not in state:
        raise ModelFileError(
            f"{path}: not a checkpoint of a training run; fine-tune from it with train.pretrained_model_path"
        )
    before = ModelHeader.from_json(state["header"], str(path))
    differs = _differences(before, prepared.header(spec, {}))
    if state.get("optimizer_name", spec.train.optim.name) != spec.train.optim.name:
        differs.append("train.optim.name")
    if differs:
        raise ConfigError(
            f"{path}: this run began with another {', '.join(differs)}; give another results_dir, "
            f"or fine-tune from it with train.pretrained_model_path={path}"
        )
    history = before.history()[:-1]  # its last step is this run
    if given := spec.train.resume_training_checkpoint_path:
        return Origin(history, digest(Path(given)), Path(given))
    return Origin(history, state.get("branched_from"))


def _differences(before: ModelHeader, now: ModelHeader) -> list[str]:
    names = [name for name in type(now.model).model_fields if getattr(before.model, name) != getattr(now.model, name)]
    of_start = ("backbone_pretrained", "pruned_graph_path", "quantize_model_path")
    differs = [f"model.{name}" for name in names if name not in of_start]
    if before.task != now.task:
        return ["task", *differs]
    parts = before.task_header.keys() | now.task_header.keys()
    return differs + sorted(name for name in parts if before.task_header.get(name) != now.task_header.get(name))


def _finish(
    prepared: Prepared, progress: Progress, stats: Stats, folder: Path, fabric: Fabric, reporter: Reporter
) -> TrainResult:
    if not progress.best:
        raise TrainingError("no validation took place, so there is no best model; lower train.validation_interval")
    metrics = dict(progress.best) | {
        "epochs": progress.epoch,
        "steps": progress.step,
        "history": progress.history,
        "data": prepared.summary(),
        "skipped": stats.skipped,
        "waiting": reporter.run_ends(),
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}",
    }
    scores = {name: progress.best[name] for name in prepared.task.figures}
    model = folder / "best_accuracy.safetensors"
    if fabric.is_global_zero:
        write_json_atomic(folder / "metrics.json", metrics)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # matplotlib's font cache and log axes of a single epoch
            draw_curves(folder / "curves.png", progress.history, prepared.task.figures)
        shown = ", ".join(f"{title} {scores[name]:.2%}" for name, title in prepared.task.figures.items())
        reporter.say(f"best: {shown} at epoch {progress.best['epoch']}; {model}")
    return TrainResult(model, folder, scores, metrics)
