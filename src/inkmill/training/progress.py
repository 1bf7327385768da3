"""What a training run says: a live line, TensorBoard events, status lines, and curves at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from inkmill.config.results import Results
from inkmill.data.loaders.plan import Seconds, Stats
from inkmill.files import atomic_path
from inkmill.perf.watch import WaitingWatch
from inkmill.timings import Timings
from inkmill.training.validate import Validation

_ESTIMATE_AFTER_S = 5.0
_WORTH_SAYING_S = 600.0


class Reporter:
    """Shows and logs a run; on ranks other than 0 it is silent.

    Args:
        console: where lines go.
        results: results folder of training; None on ranks other than 0.
        num_epochs: epochs of the run.
        figures: titles of the task's figures by name, the primary one first (see `Task.figures`).
        world_size: ranks, to scale this rank's speed to the run's.
        watch: finds out what would help where training waits for data.
        hint: what to add to an estimate of many minutes, as "; a smaller model ...".
    """

    def __init__(
        self,
        console: Console,
        results: Results | None,
        num_epochs: int,
        figures: Mapping[str, str],
        world_size: int = 1,
        watch: WaitingWatch | None = None,
        hint: str = "",
    ) -> None:
        self.console, self.results = console, results
        self.num_epochs, self.world_size = num_epochs, world_size
        self.figures, self.watch = figures, watch
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._writer: Any = None
        # Since the start of the epoch:
        self._images, self._started, self._waited = 0, time.perf_counter(), 0.0
        self._stats: Stats | None = None
        self._stages: Seconds = {}
        self._noted: set[str] = set()
        # Since the start of the run, until the estimate is said:
        self._hint = hint
        self._batches_left: int | None = None
        self._done, self._first_at = 0, 0.0

    def say(self, message: str) -> None:
        """Print one line."""
        if self.results is not None:
            self.console.print(message, markup=False, highlight=False)

    def notes(self, stats: Stats) -> None:
        """Say what a loader has noted since the last call; some of it is known with the first batch only."""
        for line in stats.notes:
            if line not in self._noted:
                self._noted.add(line)
                self.say(line)

    def epoch_starts(self, epoch: int, done: int, batches: int, stats: Stats, fills: bool = False) -> None:
        """Start the line of an epoch of `batches` batches of which `done` are done; `fills` where it fills a store."""
        self._images, self._started, self._waited = 0, time.perf_counter(), stats.stalled_s
        self._stats, self._stages = stats, dict(stats.stages)
        if self.results is None:
            return
        if self._done == 0:
            self._batches_left = batches - done + (self.num_epochs - epoch - 1) * batches
        if self.watch is not None:
            self.watch.epoch_starts(self._started, counts=not fills)
        self._live = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._live.add_task(
            "", total=batches, completed=done, epoch=epoch + 1, epochs=self.num_epochs, status=""
        )
        self._live.start()

    def batch_done(self, images: int) -> None:
        """Count one batch."""
        self._images += images
        if self._live is not None:
            self._live.advance(self._task)
        if self._batches_left is not None:
            self._estimate(time.perf_counter(), self._batches_left)

    def _estimate(self, now: float, batches: int) -> None:
        """Say once, as soon as it can be told, how long the run will take, where that is many minutes."""
        self._done += 1
        # The first batch waits for the loader, and may compile; where it alone takes long, it is all there is to go by.
        self._first_at = self._first_at or now
        seconds, count = (now - self._first_at, self._done - 1) if self._done > 1 else (now - self._started, 1)
        if seconds < _ESTIMATE_AFTER_S:
            return
        self._batches_left = None
        if line := estimate(seconds / count, batches):
            self.say(f"{line}{self._hint}")

    def step(self, step: int, loss: float, rate: float, stats: Stats) -> None:
        """Log a step: loss, learning rate, speed and share of time spent waiting for data."""
        if self.results is None:
            return
        speed, waiting = self._speed(stats)
        if self._live is not None:
            status = f"loss {loss:.4f}  {speed:,.0f} img/s  {waiting:.0%} waiting for data"
            self._live.update(self._task, status=status)
        scalars = {"train/loss": loss, "train/lr": rate, "train/images_per_s": speed, "train/waiting": waiting}
        self._scalars(scalars | {f"loading/{stage}": share for stage, share in self._shares().items()}, step)
        if self.watch is not None and (advice := self.watch.look(time.perf_counter())) is not None:
            self.say(advice)

    def epoch_ends(self, epoch: int, loss: float) -> None:
        """Close the line of an epoch and say how it went."""
        if self._live is None or self.results is None:
            return
        self._live.stop()
        self._live = None
        seconds = time.perf_counter() - self._started
        speed, waiting = self._speed(self._stats)
        self.say(
            f"epoch {epoch + 1}/{self.num_epochs}  loss {loss:.4f}  "
            f"{speed:,.0f} img/s, {waiting:.0%} of {seconds:.1f} s waiting for data"
        )
        if self._stats is not None:
            self.notes(self._stats)
        skipped = self._stats.bad_samples if self._stats is not None else 0
        if skipped:
            self.say(f"  {skipped} samples could not be loaded so far and were left out")
        if self.watch is not None and (advice := self.watch.epoch_ends(time.perf_counter())) is not None:
            self.say(f"  {advice}")
        kpi = {"train_loss": loss, "images_per_s": speed, "waiting": waiting}
        kpi |= {f"loading_{stage}": share for stage, share in self._shares().items()}
        left = (self.num_epochs - epoch - 1) * seconds
        self.results.status(
            "RUNNING",
            f"epoch {epoch + 1} of {self.num_epochs} trained",
            kpi=kpi,
            epoch=epoch + 1,
            max_epoch=self.num_epochs,
            time_per_epoch=round(seconds, 3),
            eta=round(left, 1),
        )

    def validated(self, row: dict[str, Any], chosen: Validation, is_best: bool, timings: Timings) -> None:
        """Say and log what a validation found, and where its time went."""
        if self.results is None:
            return
        primary = next(iter(self.figures))
        ema = f" (ema {row[f'ema_{primary}']:.2%})" if f"ema_{primary}" in row else ""
        shown = ", ".join(
            f"{title} {row[name]:.2%}{ema if name == primary else ''}" for name, title in self.figures.items()
        )
        self.say(
            f"  validation: {shown}, loss {row['val_loss']:.4f}{'  best so far' if is_best else ''}  "
            f"({timings.summary()})"
        )
        for line in [] if row[primary] == 1 else chosen.examples:
            self.say(f"    {line}")
        scalars = {f"val/{name}": value for name, value in row.items() if name not in ("epoch", "train_loss")}
        for name, scores in chosen.sets.items():
            scalars |= {f"val/{name}/{figure}": share for figure, share in scores.headline().items()}
        seconds = timings.as_dict()
        self._scalars(scalars | {f"val/seconds/{name}": some for name, some in seconds.items()}, row["epoch"])
        kpi = {"train_loss": row["train_loss"], "val_loss": row["val_loss"], "val_acc": row[primary]}
        kpi |= {f"val_seconds_{name}": some for name, some in seconds.items()}
        self.results.status(
            "RUNNING", f"epoch {row['epoch']} validated", kpi=kpi, epoch=row["epoch"], max_epoch=self.num_epochs
        )

    def run_ends(self) -> dict[str, Any]:
        """Say what waiting for data cost where it was more than a little, and return the run's figures."""
        if self.watch is None:
            return {}
        if (summary := self.watch.summary()) is not None:
            self.say(summary)
        return self.watch.as_dict()

    def close(self) -> None:
        """Stop the live line and close the event file."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _speed(self, stats: Stats | None) -> tuple[float, float]:
        """Return images a second of the whole run and the share of time spent waiting, since the epoch's start."""
        seconds = max(1e-9, time.perf_counter() - self._started)
        waited = (stats.stalled_s - self._waited) if stats is not None else 0.0
        return self._images * self.world_size / seconds, min(1.0, waited / seconds)

    def _shares(self) -> dict[str, float]:
        """Return what share of the time of those who make batches each stage took since the epoch's start."""
        stages = self._stats.stages if self._stats is not None else {}
        seconds = {stage: max(0.0, some - self._stages.get(stage, 0.0)) for stage, some in stages.items()}
        whole = sum(seconds.values())
        return {stage: round(some / whole, 4) for stage, some in seconds.items()} if whole else {}

    def _scalars(self, values: dict[str, float], step: int) -> None:
        if self.results is None:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.results.folder))
        for name, value in values.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, step)


def estimate(step_s: float, batches: int) -> str:
    """Return how long `batches` steps of `step_s` seconds will take, in words; empty below ten minutes."""
    seconds = step_s * batches
    if seconds < _WORTH_SAYING_S:
        return ""
    if seconds < 2 * 3600:
        length = f"{seconds / 60:,.0f} minutes"
    else:
        length = f"{seconds / 3600:,.0f} hours" if seconds < 72 * 3600 else f"{seconds / 86400:,.0f} days"
    return f"at {step_s:.2g} s a step the {batches:,} steps of this run take about {length}"


def draw_curves(path: Path, history: list[dict[str, Any]], figures: Mapping[str, str]) -> None:
    """Draw the loss and the task's figures over the epochs as a PNG.

    Args:
        path: the PNG to write, whole or not at all.
        history: one row a validated epoch, as in metrics.json.
        figures: titles of the task's figures by name, the primary one first.

    Raises:
        OutputError: the place cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in history]
    for name, label in (("train_loss", "training"), ("val_loss", "validation")):
        left.plot(epochs, [row[name] for row in history], marker=".", label=label)
    left.set(title="loss", xlabel="epoch", yscale="log" if all(row["train_loss"] > 0 for row in history) else "linear")
    primary = next(iter(figures))
    for name, label in {**figures, f"ema_{primary}": f"{figures[primary]} of the averaged weights"}.items():
        rows = [row for row in history if name in row]  # averaging may have begun or ended with a resumption
        if rows:
            right.plot([row["epoch"] for row in rows], [row[name] for row in rows], marker=".", label=label)
    right.set(title="validation", xlabel="epoch", ylim=(-0.02, 1.02))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
