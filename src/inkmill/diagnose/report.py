"""A diagnosis on one screen, and as one HTML page with charts that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from inkmill.diagnose.run import Diagnosis
from inkmill.machine import stamp_line
from inkmill.perf.plan import words_of
from inkmill.perf.stats import Interval, exactly
from inkmill.report import Page, escape

OTHERS_SHOWN = 4
_LABEL, _BAR, _ROW = 150, 480, 26  # pixels: the labels' column, the longest bar, a row's height
_STATES = {"real": "a stall", "absent": "", "unclear": "cannot tell"}


def show(console: Console, found: Diagnosis) -> None:
    """Print a diagnosis: the verdict first, then what it rests on."""
    console.print(found.verdict.sentence, style="bold", markup=False, highlight=False, soft_wrap=True)
    stalls = Table("a step of training", title=f"batches of {found.test.batch_size}", title_justify="left")
    for heading in ("ms", "95 % interval", "share", ""):
        stalls.add_column(heading, justify="right")
    for name, time, share, state in stall_rows(found):
        stalls.add_row(name, f"{time.mean * 1e3:.2f}", milliseconds(time), f"{share:.1%}", state)
    stages = Table("stage", title="one image on one core", title_justify="left")
    for heading in ("us", "images/s"):
        stages.add_column(heading, justify="right")
    for name, seconds in stage_rows(found):
        stages.add_row(name, f"{seconds * 1e6:.1f}", f"{1 / seconds:,.0f}" if seconds else "")
    plan = Table("settings", title=f"plan: {found.plan.why}", title_justify="left")
    for heading in ("predicted images/s", "limit"):
        plan.add_column(heading, justify="right")
    for words, speed, limit in plan_rows(found):
        plan.add_row(words, f"{speed:,.0f}", limit)
    for table in (stalls, stages, plan):
        console.print(table)
    for line in closing_lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def write_page(path: str | Path, found: Diagnosis) -> None:
    """Write the page.

    Raises:
        OutputError: the place cannot be written.
    """
    page = Page("inkmill diagnose")
    page.add_text(found.verdict.sentence)
    page.add_heading("Where a step's time goes")
    stalls = list(stall_rows(found))
    page.add_chart(
        bars_with_whiskers([name for name, *_ in stalls], [time for _, time, *_ in stalls], 1e3, "ms"),
        f"milliseconds a step of {found.test.batch_size} images, with 95 % intervals",
    )
    page.add_table(
        ["a step of training", "ms", "95 % interval", "share", ""],
        [[name, f"{t.mean * 1e3:.2f}", milliseconds(t), f"{share:.1%}", state] for name, t, share, state in stalls],
    )
    page.add_heading("What an image costs")
    stages = list(stage_rows(found))
    times = [exactly(seconds) for _, seconds in stages]
    page.add_chart(bars_with_whiskers([name for name, _ in stages], times, 1e6, "us"), "microseconds an image and core")
    page.add_heading("The plan")
    page.add_text(found.plan.why)
    page.add_table(["settings", "predicted images/s", "limit"], [[a, round(b), c] for a, b, c in plan_rows(found)])
    for line in closing_lines(found):
        page.add_text(line)
    page.write(path)


def stall_rows(found: Diagnosis) -> Iterator[tuple[str, Interval, float, str]]:
    """Yield (name, seconds, share of the warm step, what it is) of the step and of each stall."""
    test = found.test
    yield "the step itself", test.step, test.step.mean / test.warm.mean, ""
    for stall in test.stalls:
        yield stall.name, stall.seconds, stall.share, _STATES[stall.state]
    yield "real batches, warm", test.warm, 1.0, ""
    if test.cold is not None:
        yield "real batches, cold", test.cold, test.cold.mean / test.warm.mean, ""


def stage_rows(found: Diagnosis) -> Iterator[tuple[str, float]]:
    """Yield (stage, seconds an image)."""
    for name, time in found.times.items():
        yield "read, warm" if name == "read" else name, time.mean
        if name == "read" and found.reading.cold_s is not None:
            yield "read, cold", found.reading.cold_s


def plan_rows(found: Diagnosis) -> Iterator[tuple[str, float, str]]:
    """Yield (settings in words, predicted images/s, limit): the plan, the settings as they are, and some others."""
    plan = found.plan
    now = plan.current.settings
    if found.overrides:
        yield f"plan: {words_of(found.overrides)}", plan.best.images_per_s, plan.best.limit
    yield "as it is", plan.current.images_per_s, plan.current.limit
    for one in plan.others[:OTHERS_SHOWN]:
        if one.settings != now:
            yield words_of(one.settings.overrides(now)), one.images_per_s, one.limit


def closing_lines(found: Diagnosis) -> list[str]:
    """Return the lines below the tables: prediction and trial, the machine, how images are read, what was left out."""
    warm, predicted, measured = found.test.throughput, found.plan.best.images_per_s, found.measured
    lines = [f"as it is: {warm.mean:,.0f} images/s, warm"]
    if found.now != warm:
        lines[0] += f"; {found.now.mean:,.0f} read from the disk"
    if found.overrides:
        tried = f"measured {measured.mean:,.0f} +- {measured.half:,.0f}" if found.tried else "not tried"
        lines.append(f"with the plan: predicted {predicted:,.0f} images/s, {tried}")
    if "dataset.batch_size" in found.overrides:
        lines.append("a larger batch makes fewer and larger steps: the learning rate may have to follow")
    lines.append(stamp_line(found.machine))
    if found.reading.cold_s is not None:
        size = found.reading.image_bytes / 1024
        lines.append(f"storage: {found.reading.cold_s * 1e3:.2f} ms for a cold image of {size:.1f} KiB")
    lines.append(f"took {found.seconds:.0f} s")
    return [*lines, *found.notes]


def milliseconds(time: Interval) -> str:
    """Return an interval in milliseconds."""
    return f"{time.low * 1e3:.2f} to {time.high * 1e3:.2f}"


def bars_with_whiskers(names: Sequence[str], times: Sequence[Interval], unit: float, word: str) -> str:
    """Return an SVG of one horizontal bar a quantity, with its interval as a line; a negative mean has none.

    Args:
        names: one a bar; escaped here.
        times: the quantities.
        unit: factor from seconds to what is shown.
        word: the unit's name.
    """
    longest = max((max(time.high, time.mean) for time in times), default=0.0)
    scale = _BAR / longest if 0 < longest < float("inf") else 0.0
    parts = []
    for row, (name, time) in enumerate(zip(names, times, strict=True)):
        top, middle = row * _ROW + 4, row * _ROW + _ROW / 2
        width = max(0.0, time.mean * scale)
        low, high = (_LABEL + min(max(0.0, end * scale), _BAR) for end in (time.low, time.high))
        parts.append(f'<text x="{_LABEL - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_ROW - 8}"></rect>')
        if high > low:
            parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="currentColor" stroke-width="2"></path>')
        parts.append(f'<text x="{_LABEL + _BAR + 8}" y="{middle + 4:.1f}">{time.mean * unit:,.1f} {word}</text>')
    box = f"0 0 {_LABEL + _BAR + 90} {len(names) * _ROW}"
    return f'<svg viewBox="{box}" role="img">{"".join(parts)}</svg>'
