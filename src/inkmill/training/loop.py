"""The training loop: epochs of steps, validations, checkpoints, and an exact way back into the middle of an epoch.

Lightning Fabric brings devices, precision and gradient exchange; the loop itself is written out, because a run that
is killed at any moment must continue as if nothing had happened: everything that moves is in `_state`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from inkmill.config.spec import Spec
from inkmill.crypt import Key
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.errors import TrainingError
from inkmill.modelfile.model_card import with_speeds
from inkmill.modelfile.torch_file import save_model
from inkmill.runtime.torch_reader import ForwardPass, device_name
from inkmill.tasks.model import TaskModel
from inkmill.timings import Timings
from inkmill.training.batches import augmented_images
from inkmill.training.checkpoint import save_checkpoint
from inkmill.training.ema import WeightAverage
from inkmill.training.loss_watch import LossWatch
from inkmill.training.optim import Schedule, load_optimizer, optimizer_state
from inkmill.training.prepare import Prepared
from inkmill.training.progress import Reporter
from inkmill.training.ranks import StopSignal
from inkmill.training.step import make_step
from inkmill.training.validate import Validation, validate


@dataclass
class Progress:
    """Where a run stands; all of it goes into every checkpoint."""

    epoch: int = 0
    """Epochs that are complete."""
    batches: int = 0
    """Batches of the current epoch that are done."""
    step: int = 0
    """Optimiser steps."""
    images: int = 0
    """Images trained on, this rank's."""
    best: dict[str, Any] = field(default_factory=dict)
    """The best validation so far: the task's figures, loss, epoch, weights (raw or ema)."""
    best_rank: list[float] = field(default_factory=list)
    """What the next validation must exceed; see `Validation.rank`."""
    validations_since_best: int = 0
    """For early_stop."""
    stopped_early: bool = False
    """early_stop has ended the run."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row a validated epoch."""


@dataclass(frozen=True)
class Origin:
    """What a run started from.

    Attributes:
        history: how the file was made that it started from, for the header.
        branched_from: the digest of the checkpoint that the user had it resume from, if any.
        spare: where that checkpoint is; it is not deleted.
    """

    history: Sequence[dict[str, Any]] = ()
    branched_from: str | None = None
    spare: Path | None = None


class TrainingLoop:
    """Trains a network.

    Args:
        fabric: launched Fabric.
        spec: the resolved spec.
        model: the network, on the CPU.
        prepared: data and task.
        loaders: training loader and, by set name, validation loaders; all give batches on the device.
        folder: results folder of training.
        reporter: shows and logs what happens; only rank 0's prints anything.
        key: encrypts what is written.
        origin: what the run started from.
    """

    def __init__(
        self,
        fabric: Fabric,
        spec: Spec,
        model: TaskModel,
        prepared: Prepared,
        loaders: tuple[DeviceLoader, dict[str, DeviceLoader]],
        folder: Path,
        reporter: Reporter,
        key: Key | None = None,
        origin: Origin = Origin(),
    ) -> None:
        self.fabric, self.spec = fabric, spec
        self.prepared, self.task = prepared, prepared.task
        self.loader, self.val_loaders = loaders
        self.folder, self.reporter = folder, reporter
        self._key, self._origin = key, origin
        settings = spec.train
        if settings.channels_last and (fabric.device.type == "cuda" or fabric.world_size > 1):
            model = model.to(memory_format=torch.channels_last)
        self.model = model.to(fabric.device)
        self.average = WeightAverage(self.model, settings.ema_decay) if settings.model_ema else None
        self.step = make_step(fabric, spec, self.model, self.average, reporter.say)
        steps_per_epoch = -(-len(self.loader) // settings.accumulate)
        self.schedule = Schedule(settings.optim, steps_per_epoch, settings.num_epochs)
        self.watch = LossWatch(1 if fabric.device.type == "cpu" else settings.log_every, fabric)
        self.progress = Progress()
        # Reading for validation: captured for itself, and not compiled, which takes longer than most validations.
        autocast = fabric.autocast if fabric.device.type == "cuda" else nullcontext
        needs, captured = tuple(self.task.plain_decoder().needs), settings.compile is not False
        self._forward = ForwardPass(self.model, needs, True, autocast, reporter.say, self.step.memory, captured)
        self._stop = StopSignal(fabric, reporter.say, settings.log_every)

    def run(self) -> Progress:
        """Train to the end and return where the run stands.

        Raises:
            TrainingError: the loss became NaN or infinite; names the samples of the batch.
            KeyboardInterrupt: Ctrl-C or SIGTERM, after a checkpoint was saved.
        """
        settings = self.spec.train
        with self._stop.listened_for():
            while self.progress.epoch < settings.num_epochs and not self.progress.stopped_early:
                self._train_epoch()
                epoch = self.progress.epoch
                if epoch % settings.validation_interval == 0 or epoch == settings.num_epochs:
                    self._validate()
                ends = epoch == settings.num_epochs or self.progress.stopped_early
                due = settings.checkpoint_interval_unit == "epoch" and epoch % settings.checkpoint_interval == 0
                if due or ends:
                    self.save()
        return self.progress

    def train_on(self, batch: Batch) -> None:
        """Do one step on one batch, outside of any epoch: for measurements."""
        self._train_batch(batch, updates=True)
        self.watch.forget()

    def _train_epoch(self) -> None:
        progress, settings = self.progress, self.spec.train
        self.model.train()
        last = len(self.loader)
        fills = self.spec.dataset.cache != "none" and self.loader.stats.batches == 0
        self.reporter.epoch_starts(progress.epoch, progress.batches, last, self.loader.stats, fills)
        if progress.batches < last:  # else the checkpoint was taken after the last batch of its epoch
            self.loader.set_epoch(progress.epoch)
            for batch in self.loader:
                progress.batches += 1
                updates = progress.batches % settings.accumulate == 0 or progress.batches == last
                self._train_batch(batch, updates)
        self.watch.check()
        self.watch.add_up()
        self.reporter.epoch_ends(progress.epoch, self.watch.epoch_mean())
        progress.epoch, progress.batches = progress.epoch + 1, 0

    def _train_batch(self, batch: Batch, updates: bool) -> None:
        # 1. Images, augmented: the GPU works on them while the targets are encoded.
        images = augmented_images(batch)
        encoded = self.task.encode(self.task.truths(batch.targets))
        targets = self.model.to_targets(encoded, batch, images.permute(0, 3, 1, 2))
        seed, epoch = self.loader.plan.seed, self.progress.epoch
        images, targets = self.model.mixed(images, targets, seed, epoch, batch.index)
        # 2. The step.
        rate = self.schedule.apply(self.step.optimizer, self._step_of_schedule()) if updates else 0.0
        loss = self.step(images, targets, updates)
        # 3. Count; the loss stays on the device until LossWatch asks for it.
        self.progress.images += len(batch)
        self.watch.add(loss, len(batch), batch.keys)
        self.reporter.batch_done(len(batch))
        if updates:
            self._after_step(rate)

    def _after_step(self, rate: float) -> None:
        progress, settings = self.progress, self.spec.train
        progress.step += 1
        if progress.step % settings.log_every == 0:
            self.reporter.step(progress.step, self.watch.recent_mean(), rate, self.loader.stats)
        due = settings.checkpoint_interval_unit == "step" and progress.step % settings.checkpoint_interval == 0
        stops = self._stop.asked(progress.step)
        if due or stops:
            self.save()
        if stops:
            raise KeyboardInterrupt

    def _step_of_schedule(self) -> int:
        """Return which step of the run this would be, had all its epochs been as long as the present one.

        That is `progress.step`, unless a run goes on with other data or another batch size.
        """
        within = max(0, self.progress.batches - 1) // self.spec.train.accumulate
        return self.progress.epoch * self.schedule.steps_per_epoch + within

    def _validate(self) -> None:
        timings = Timings()
        candidates = {"raw": self._score(self.model, timings)}
        if self.average is not None:
            with self.average.applied_to(self.model):
                candidates["ema"] = self._score(self.model, timings)
        raw = candidates["raw"]
        if not math.isfinite(raw.loss):
            raise TrainingError(
                f"the validation loss became {raw.loss} in epoch {self.progress.epoch}; lower train.optim.lr or use "
                "train.precision=fp32 (the last checkpoint is from before)"
            )
        self.schedule.validated(raw.loss, raw.scores.primary)
        weights, chosen = max(candidates.items(), key=lambda pair: pair[1].rank())
        row = {"epoch": self.progress.epoch, "train_loss": self.watch.epoch_mean(), "val_loss": raw.loss}
        row |= raw.scores.headline()
        if "ema" in candidates:
            row |= {f"ema_{name}": share for name, share in candidates["ema"].scores.headline().items()}
        self.progress.history.append(row)
        read = len(candidates) * sum(scores.samples for scores in chosen.sets.values())
        is_best = self._keep_if_best(chosen, weights, images_per_s=read / timings.total)
        self.reporter.validated(row, chosen, is_best, timings)
        early = self.spec.train.early_stop
        self.progress.stopped_early = early is not None and self.progress.validations_since_best >= early

    def _score(self, model: TaskModel, timings: Timings) -> Validation:
        self.step.before_validation()
        with self.step.as_compiled(0):
            found = validate(model, self.val_loaders, self.task, self._forward, timings)
        for loader in self.val_loaders.values():
            self.reporter.notes(loader.stats)
        return found

    def _keep_if_best(self, chosen: Validation, weights: str, images_per_s: float) -> bool:
        progress, rank = self.progress, list(chosen.rank())
        if progress.best and rank <= progress.best_rank:
            progress.validations_since_best += 1
            return False
        progress.validations_since_best = 0
        progress.best_rank = rank
        progress.best = chosen.scores.headline() | {
            "loss": chosen.loss,
            "epoch": progress.epoch,
            "weights": weights,
        }
        if self.fabric.is_global_zero:
            tuned = replace(self.prepared, task=self.task.tuned(chosen.scores))
            header = tuned.header(self.spec, progress.best, self._origin.history)
            header = with_speeds(header, device_name(self.fabric.device), {"validation": images_per_s})
            state = self.average.weights if weights == "ema" and self.average is not None else self.model.state_dict()
            save_model(self.folder / "best_accuracy.safetensors", state, header, self._key)
        return True

    def save(self) -> None:
        """Write a checkpoint of everything that moves, and of no weights that a bad loss has spoilt."""
        self.watch.check_all()
        self.watch.add_up()
        if self.fabric.is_global_zero:
            at, keep = self.progress, self.spec.train.keep_checkpoints
            save_checkpoint(self.folder, self._state(), at.epoch, at.step, keep, self._key, self._origin.spare)

    def resume(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint of `save`."""
        self.model.load_state_dict(state["model"])
        load_optimizer(self.step.optimizer, state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.fabric.is_global_zero:  # the sums are those of all ranks
            self.watch.load_state_dict(state["watch"])
        self.progress = Progress(**state["progress"])
        early = self.spec.train.early_stop
        self.progress.stopped_early = early is not None and self.progress.validations_since_best >= early
        if self.progress.stopped_early:
            since = self.progress.validations_since_best
            self.reporter.say(
                f"nothing to do: the last {since} validations brought nothing better, and train.early_stop={early}; "
                "a larger one, or none, lets the run go on"
            )
        self._resume_loader(state["loader"])
        if self.average is not None and state["average"] is not None:
            self.average.load_state_dict(state["average"])
        scaler = getattr(self.fabric._precision, "scaler", None)
        if scaler is not None and state["scaler"]:
            scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"]["cpu"])
        if self.fabric.device.type == "cuda" and state["random"]["cuda"] is not None:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.fabric.device)

    def _resume_loader(self, state: dict[str, Any]) -> None:
        """Go on in the middle of an epoch with the same data in the same order, after a whole one with any."""
        if self.progress.batches or not (differences := self.loader.differences(state)):
            self.loader.load_state_dict(state)
            return
        self.loader.set_epoch(self.progress.epoch)
        self.reporter.say(f"the order of the samples is another one from this epoch on: {'; '.join(differences)}")

    def _state(self) -> dict[str, Any]:
        scaler = getattr(self.fabric._precision, "scaler", None)
        on_gpu = self.fabric.device.type == "cuda"
        return {
            "header": self.prepared.header(self.spec, self.progress.best, self._origin.history).to_json(),
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self.step.optimizer),
            "branched_from": self._origin.branched_from,
            "optimizer_name": self.spec.train.optim.name,
            "schedule": self.schedule.state_dict(),
            "watch": self.watch.state_dict(),
            "progress": asdict(self.progress),
            "loader": self.loader.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "random": {
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(self.fabric.device) if on_gpu else None,
            },
        }
