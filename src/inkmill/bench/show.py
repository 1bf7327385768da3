"""The rows as a table in the terminal, as a bar chart, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inkmill.bench.run import OURS, Row, Settings
from inkmill.errors import MissingExtraError
from inkmill.files import write_json_atomic, writing

if TYPE_CHECKING:
    from rich.table import Table

YARDSTICK = "torch-pil"


def as_json(rows: Sequence[Row], settings: Settings, machine: dict[str, Any]) -> dict[str, Any]:
    """Return {machine, task, rows}, plain values."""
    task = {
        "data": settings.path or f"{settings.images} rendered JPEG crops in an LMDB",
        "batch": f"uint8 ({settings.batch_size}, 32, 128, 3) on {settings.device}",
        "workers": settings.workers,
        "seconds": settings.seconds,
    }
    return {"machine": machine, "task": task, "rows": [row.as_dict() for row in rows]}


def write_json(path: str | Path, rows: Sequence[Row], settings: Settings, machine: dict[str, Any]) -> None:
    """Write the JSON file, whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_json_atomic(Path(path), as_json(rows, settings, machine))


def yardstick(rows: Sequence[Row], augment: str) -> float | None:
    """Return the speed of torch's DataLoader with Pillow in this run, or None where it did not run."""
    speeds = [r.images_per_s for r in rows if r.loader == YARDSTICK and r.augment == augment]
    return speeds[0] if speeds else None


def as_table(rows: Sequence[Row], title: str) -> Table:
    """Return the rich table; "times" compares with the classic loader under the same augmentation."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption="\n".join(notes(rows)), caption_justify="left")
    for name in ("loader", "cache", "engine", "augment"):
        table.add_column(name)
    for name in ("images/s", "spread", "times torch-pil"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.images_per_s is not None:
            style = "bold" if row.kind == OURS else ""
            table.add_row(row.loader, row.cache, row.engine, row.augment, *_figures(row, rows), style=style)
    return table


def notes(rows: Sequence[Row]) -> list[str]:
    """Return one line for each remark, naming the loaders and engines it is about; what did not run comes last."""
    about: dict[tuple[bool, str], dict[str, None]] = {}
    for row in rows:
        if row.note:
            name = f"{row.loader} ({row.engine})" if row.kind == OURS else row.loader
            about.setdefault((row.images_per_s is None, row.note), {})[name] = None
    absent_last = sorted(about.items(), key=lambda entry: entry[0][0])
    return [f"{', '.join(names)}: {'not run, ' if absent else ''}{note}" for (absent, note), names in absent_last]


def _figures(row: Row, rows: Sequence[Row]) -> tuple[str, str, str]:
    speed, base = row.images_per_s or 0.0, yardstick(rows, row.augment)
    return f"{speed:,.0f}", f"{row.spread or 0:.0%}", f"{speed / base:.1f}" if base else ""


def write_chart(path: str | Path, rows: Sequence[Row], title: str) -> None:
    """Draw the rows as horizontal bars on a logarithmic axis, fastest first; the format follows the suffix.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "train", "the bar chart") from None
    groups = [(augment, ran) for augment in ("strong", "none") if (ran := _fastest_first(rows, augment))]
    heights = [len(group) for _, group in groups] or [1]
    figure = Figure(figsize=(10, 1.6 + 0.3 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=9)
    panels = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True, squeeze=False)[:, 0]
    for axes, (augment, group) in zip(panels, groups, strict=False):  # no row that ran: one empty panel
        _bars(axes, group)
        axes.set_title(f"augmentation: {augment}", fontsize=9, loc="left")
    panels[-1].set_xlabel("images per second")
    with writing(path):
        figure.savefig(path, dpi=130)


def _fastest_first(rows: Sequence[Row], augment: str) -> list[Row]:
    ran = [row for row in rows if row.augment == augment and row.images_per_s]
    return sorted(ran, key=lambda row: -(row.images_per_s or 0))


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    names = [" · ".join((r.loader, r.engine, *(() if r.cache == "none" else (f"kept: {r.cache}",)))) for r in rows]
    places, speeds = range(len(rows)), [row.images_per_s for row in rows]
    errors = [(row.images_per_s or 0) * (row.spread or 0) / 2 for row in rows]
    colours = ["#1f6f8b" if row.kind == OURS else "#b0b7bd" for row in rows]
    bars = axes.barh(places, speeds, xerr=errors, color=colours, error_kw={"linewidth": 0.8})
    axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=4, fontsize=8)
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
