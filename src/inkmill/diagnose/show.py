"""A diagnosis on one screen: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from inkmill.diagnose.plan import words_of
from inkmill.diagnose.run import Diagnosis
from inkmill.diagnose.windows import Interval
from inkmill.machine import stamp_line

OTHERS_SHOWN = 4


def show(console: Console, found: Diagnosis) -> None:
    """Print a diagnosis."""
    console.print(found.verdict.sentence, style="bold", markup=False, highlight=False, soft_wrap=True)
    console.print(_stalls(found))
    console.print(_stages(found))
    console.print(_plan(found))
    for line in (*speeds(found), stamp_line(found.machine), storage_line(found), *found.notes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _stalls(found: Diagnosis) -> Table:
    table = Table("a step of training", title=f"batches of {found.test.batch_size}", title_justify="left")
    for heading in ("ms", "95 % interval", "share", ""):
        table.add_column(heading, justify="right")
    for name, time, share, state in stall_rows(found):
        table.add_row(name, f"{time.mean * 1e3:.2f}", milliseconds(time), f"{share:.1%}", state)
    return table


def stall_rows(found: Diagnosis) -> Iterator[tuple[str, Interval, float, str]]:
    """Yield (name, seconds, share of the warm step, what it is) of the step and of each stall."""
    test = found.test
    yield "the step itself", test.step, test.step.mean / test.warm.mean, ""
    words = {"real": "a stall", "absent": "", "unclear": "cannot tell"}
    for stall in test.stalls:
        yield stall.name, stall.seconds, stall.share, words[stall.state]
    yield "real batches, warm", test.warm, 1.0, ""
    if test.cold is not None:
        yield "real batches, cold", test.cold, test.cold.mean / test.warm.mean, ""


def _stages(found: Diagnosis) -> Table:
    table = Table("stage", title="one image on one core", title_justify="left")
    for heading in ("us", "images/s"):
        table.add_column(heading, justify="right")
    for name, seconds in stage_rows(found):
        table.add_row(name, f"{seconds * 1e6:.1f}", f"{1 / seconds:,.0f}" if seconds else "")
    return table


def stage_rows(found: Diagnosis) -> Iterator[tuple[str, float]]:
    """Yield (stage, seconds an image)."""
    for name, time in found.stages.times.items():
        yield "read, warm" if name == "read" else name, time.mean
        if name == "read" and found.storage.cold_s is not None:
            yield "read, cold", found.storage.cold_s


def _plan(found: Diagnosis) -> Table:
    table = Table("settings", title=f"plan: {found.plan.why}", title_justify="left")
    for heading in ("predicted images/s", "limit"):
        table.add_column(heading, justify="right")
    for words, speed, limit in plan_rows(found):
        table.add_row(words, f"{speed:,.0f}", limit)
    return table


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


def speeds(found: Diagnosis) -> list[str]:
    """Return the lines that compare prediction and proof."""
    warm = f"as it is: {found.test.images_per_s:,.0f} images/s, warm"
    lines = [warm if found.now == found.test.speed else f"{warm}; {found.now.mean:,.0f} read from the disk"]
    predicted, measured = found.plan.best.images_per_s, found.measured
    lead = "with the plan" if found.overrides else "again"
    lines.append(f"{lead}: predicted {predicted:,.0f} images/s, measured {measured.mean:,.0f} +- {measured.half:,.0f}")
    if "dataset.batch_size" in found.overrides:
        lines.append("a larger batch makes fewer and larger steps: the learning rate may have to follow")
    return lines


def storage_line(found: Diagnosis) -> str:
    """Return what is known of the disk."""
    storage = found.storage
    if storage.cold_s is None:
        return f"storage: {storage.kind}"
    line = f"storage: {storage.kind}, {storage.cold_s * 1e3:.2f} ms for a cold image"
    line += f" of {storage.image_bytes / 1024:.1f} KiB"
    line += f", {storage.at_a_time:.0f} at a time" if storage.small_files else ""
    return line if storage.gain is None else f"{line}; from shards {storage.gain:.1f} times as fast"


def milliseconds(time: Interval) -> str:
    """Return an interval in milliseconds."""
    return f"{time.low * 1e3:.2f} to {time.high * 1e3:.2f}"
