"""Measure all cases in one run, one after another on the same data; the table and the JSON of what came out.

A case is compared with what ran beside it, so all share one source. Each case is clocked in several windows of one
running stream, after a warm-up. The windows follow each other without a pause, so nothing can be prepared outside the
clock, and each ends with the device idle. The figure is the median of the windows; the spread is their range over the
median: a machine that does something else meanwhile shows in the spread.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from inkmill.bench.baseline import BASELINE, baseline_case
from inkmill.bench.cases import AUGMENTS, Augment, BenchmarkCase, LoadTask, inkmill_cases
from inkmill.bench.workload import write_crops
from inkmill.config.dataset import SourceSpec
from inkmill.data.loaders.pool import SLOTS
from inkmill.data.sources import Source, Subset, open_source
from inkmill.errors import ConfigError, MissingExtraError, first_line
from inkmill.registry import suggest

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

WINDOWS = 3


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What a run was asked for.

    Attributes:
        path: the user's data; None renders crops.
        images: how many crops to render.
        seconds: measuring time a case; warm-up comes on top.
        workers: processes or threads; 0 loads in the calling thread.
        batch_size: images a batch.
        only: names of loaders or engines to run; empty for all.
        device: a torch device.
        augment: only the cases with this augmentation; None for both.
    """

    path: str | None
    images: int
    seconds: float
    workers: int
    batch_size: int
    only: tuple[str, ...]
    device: str
    augment: Augment | None = None


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One line of the table.

    Attributes:
        loader, cache, engine, augment, note, ours: see `BenchmarkCase`; `note` also says why a case did not run.
        images_per_s: median of the windows; None where it did not run.
        spread: range of the windows over their median.
        first_s: seconds to the first batch, starting processes included.
        failed: it should have run, and raised an error.
    """

    loader: str
    cache: str
    engine: str
    augment: str
    note: str
    ours: bool
    images_per_s: float | None = None
    spread: float | None = None
    first_s: float | None = None
    failed: bool = False


def default_device() -> str:
    """Return cuda where there is a GPU, else cpu.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "train", "inkmill bench") from None
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_cases() -> list[BenchmarkCase]:
    """Return the baseline and every loader of inkmill, without augmentation first."""
    baselines = [baseline_case(augment) for augment in AUGMENTS]
    return baselines + [case for augment in AUGMENTS for case in inkmill_cases(augment)]


def select(cases: Sequence[BenchmarkCase], only: Sequence[str], augment: Augment | None) -> list[BenchmarkCase]:
    """Return the cases that are asked for.

    Raises:
        ConfigError: a name in `only` that no loader and no engine of inkmill has.
    """
    names = list(dict.fromkeys([c.loader for c in cases] + [c.engine for c in cases if c.ours]))
    for name in only:
        if name not in names:
            raise ConfigError(f"unknown loader {name!r}{suggest(name, names)}; known: {', '.join(names)}")
    cases = [c for c in cases if augment in (None, c.augment)]
    return [c for c in cases if not only or c.loader in only or c.engine in only]


def run(settings: BenchSettings, cases: Sequence[BenchmarkCase] | None = None) -> Iterator[BenchRow]:
    """Measure, yielding each row as soon as it is there.

    Args:
        settings: what is asked for.
        cases: what to choose from; by default the baseline and inkmill's own.

    Raises:
        ConfigError: an unknown loader.
        DataError: the user's data cannot be read.
    """
    chosen = select(default_cases() if cases is None else cases, settings.only, settings.augment)
    with tempfile.TemporaryDirectory(prefix="inkmill-bench-") as name:
        scratch = Path(name)
        source = _open_source(settings, scratch)
        batch_size = min(settings.batch_size, len(source))
        task = LoadTask(source, scratch, batch_size, settings.workers, settings.device)
        for case in chosen:
            yield measure_case(case, replace(task, augment=case.augment), settings.seconds)


def _open_source(settings: BenchSettings, scratch: Path) -> Source:
    """Return the user's samples or rendered ones, in whole batches: a short one is another shape to compile for."""
    path = settings.path or str(write_crops(scratch / "crops", settings.images))
    source = open_source(SourceSpec(path=path))
    surplus = len(source) % min(settings.batch_size, len(source))
    return Subset(source, np.arange(len(source) - surplus)) if surplus else source


def measure_case(case: BenchmarkCase, task: LoadTask, seconds: float) -> BenchRow:
    """Return the row of one case; one that cannot run here, or fails, is a row too, whose note says why."""
    row = BenchRow(case.loader, case.cache, case.engine, case.augment, case.note, case.ours)
    # 1. Workers may have batches ready before the clock runs: four each in inkmill's pool, two elsewhere.
    round_images = task.workers * task.batch_size
    prefetched = (SLOTS if case.ours else 2) * round_images
    # 2. The first pass over the data fills the cache, so the figure is that of the second epoch and later.
    warm_images = max(prefetched, len(task.source) if case.cache != "none" else 2 * task.batch_size)
    stream = case.stream(task)
    try:
        result = measure(stream, seconds, warm_images, round_images)
    except (ConfigError, MissingExtraError) as error:  # this machine lacks a GPU or a package
        return replace(row, note=first_line(error))
    except ModuleNotFoundError as error:
        return replace(row, note=f"not installed: {error.name}")
    except Exception as error:  # one case that fails must not end the run
        return replace(row, note=f"failed: {type(error).__name__}: {first_line(error)}"[:300], failed=True)
    finally:
        getattr(stream, "close", lambda: None)()
        del stream
        gc.collect()  # some peers end their processes only when they are collected
    speed, spread = round(result.images_per_s, 1), round(result.spread, 3)
    return replace(row, images_per_s=speed, spread=spread, first_s=round(result.first_s, 2))


@dataclass(frozen=True, slots=True)
class Measured:
    """The throughput of a stream.

    Attributes:
        images_per_s: median of the windows.
        spread: (fastest - slowest) / median.
        first_s: seconds until the first batch, starting processes included.
        shape: of a batch.
    """

    images_per_s: float
    spread: float
    first_s: float
    shape: tuple[int, ...]


def measure(stream: Iterator[Tensor], seconds: float, warm_images: int, window_images: int = 0) -> Measured:
    """Return the throughput of a stream.

    Args:
        stream: batches without end; each window ends by waiting for the device of its tensors.
        seconds: length of all windows together.
        warm_images: consume at least so many images first: a full pass where images are cached.
        window_images: consume at least so many images a window: workers that assemble whole batches finish together,
            and a window shorter than such a round would count what was prepared before it began.

    Raises:
        RuntimeError: the stream ended.
    """
    # 1. Time to the first batch: processes start, files are opened.
    start = perf_counter()
    batch = _next_batch(stream)
    _synchronize(batch)
    first_s = perf_counter() - start
    # 2. Warm-up, by images and by time: caches fill, prefetched batches are consumed, the clock rate settles.
    images, until = len(batch), perf_counter() + seconds / WINDOWS
    while images < warm_images or perf_counter() < until:
        batch = _next_batch(stream)
        images += len(batch)
    _synchronize(batch)
    # 3. The windows, without a pause between them.
    speeds = [_window(stream, seconds / WINDOWS, window_images) for _ in range(WINDOWS)]
    middle = median(speeds)
    return Measured(middle, (max(speeds) - min(speeds)) / middle, first_s, tuple(batch.shape))


def _window(stream: Iterator[Tensor], seconds: float, least_images: int) -> float:
    start, images = perf_counter(), 0
    while True:
        batch = _next_batch(stream)
        images += len(batch)
        if images >= least_images and perf_counter() - start >= seconds:
            _synchronize(batch)  # work that was only queued is not done
            return images / (perf_counter() - start)


def _next_batch(stream: Iterator[Tensor]) -> Tensor:
    batch = next(stream, None)
    if batch is None:
        raise RuntimeError("the stream of a benchmark case ended; it must go on without end")
    return batch


def _synchronize(batch: Tensor) -> None:
    if batch.is_cuda:
        import torch

        torch.cuda.synchronize(batch.device)


def as_json(rows: Sequence[BenchRow], settings: BenchSettings, machine: dict[str, Any]) -> dict[str, Any]:
    """Return {machine, task, rows}, plain values."""
    task = {
        "data": settings.path or f"{settings.images} rendered JPEG crops in an LMDB",
        "batch": f"uint8 ({settings.batch_size}, 32, 128, 3) on {settings.device}",
        "workers": settings.workers,
        "seconds": settings.seconds,
    }
    return {"machine": machine, "task": task, "rows": [asdict(row) for row in rows]}


def baseline_speed(rows: Sequence[BenchRow], augment: str) -> float | None:
    """Return the images a second of the baseline in this run, or None where it did not run."""
    return next((r.images_per_s for r in rows if r.loader == BASELINE and r.augment == augment), None)


def as_table(rows: Sequence[BenchRow], title: str) -> Table:
    """Return the rich table; "times torch-pil" compares with the baseline under the same augmentation."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption="\n".join(notes(rows)), caption_justify="left")
    for name in ("loader", "cache", "engine", "augment"):
        table.add_column(name)
    for name in ("images/s", "spread", f"times {BASELINE}"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.images_per_s is not None:
            base = baseline_speed(rows, row.augment)
            times = f"{row.images_per_s / base:.1f}" if base else ""
            figures = (f"{row.images_per_s:,.0f}", f"{row.spread or 0:.0%}", times)
            table.add_row(row.loader, row.cache, row.engine, row.augment, *figures, style="bold" if row.ours else "")
    return table


def notes(rows: Sequence[BenchRow]) -> list[str]:
    """Return one line for each note, naming the loaders it is about; what did not run comes last."""
    about: dict[tuple[bool, str], dict[str, None]] = {}
    for row in rows:
        if row.note:
            name = f"{row.loader} ({row.engine})" if row.ours else row.loader
            about.setdefault((row.images_per_s is None, row.note), {})[name] = None
    absent_last = sorted(about.items(), key=lambda entry: entry[0][0])
    return [f"{', '.join(names)}: {'not run, ' if absent else ''}{note}" for (absent, note), names in absent_last]
