"""A diagnosis as one HTML file with charts, which loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inkmill.diagnose.run import Diagnosis
from inkmill.diagnose.show import milliseconds, plan_rows, speeds, stage_rows, stall_rows, storage_line
from inkmill.diagnose.windows import Interval
from inkmill.machine import stamp_line
from inkmill.report import Page, escape

_LABEL, _BAR, _ROW = 150, 480, 26  # pixels: the labels' column, the longest bar, a row's height


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
    header = ["a step of training", "ms", "95 % interval", "share", ""]
    page.add_table(
        header,
        [[name, f"{t.mean * 1e3:.2f}", milliseconds(t), f"{share:.1%}", state] for name, t, share, state in stalls],
    )
    page.add_heading("What an image costs")
    stages = list(stage_rows(found))
    times = [Interval(seconds, seconds, seconds, 0) for _, seconds in stages]
    page.add_chart(bars_with_whiskers([name for name, _ in stages], times, 1e6, "us"), "microseconds an image and core")
    page.add_text(storage_line(found))
    page.add_heading("The plan")
    page.add_text(found.plan.why)
    page.add_table(["settings", "predicted images/s", "limit"], [[a, round(b), c] for a, b, c in plan_rows(found)])
    for line in (*speeds(found), stamp_line(found.machine), *found.notes):
        page.add_text(line)
    page.write(path)


def bars_with_whiskers(names: Sequence[str], times: Sequence[Interval], unit: float, word: str) -> str:
    """Return an SVG of one horizontal bar a quantity, with its interval as a line; negative means are drawn as none.

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
