"""The result of `check` as one HTML page: what is lost and why, what the sets look like, and pictures to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.check import SampleRules
from inkmill.data.jobs.check_report import CheckReport
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources.base import Source
from inkmill.data.types import Labels, Polygons, Target, Text
from inkmill.errors import DataError, ImageError
from inkmill.report import Page, Picture, draw_regions

_EXAMPLES = 20
_PICTURES = 48
_LARGE_PICTURES = 16
_PAIRS = 12
_FOUND, _IGNORED = (0, 170, 0), (130, 130, 130)


def write_page(
    path: str | Path, reports: Mapping[str, CheckReport], sources: Mapping[str, Source], rules: SampleRules
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        rules: what the sets were checked by; adds what its task knows of the labels.
        reports: a report for each set, by the set's name.
        sources: the sets themselves, by the same names; read for keys and for the pictures of the contact sheets.

    Raises:
        OutputError: the place cannot be written.
    """
    page = Page("inkmill check")
    header = ["set", "samples", "used", "left out", "share left out", "repeated files"]
    page.add_table(header, [_summary(name, report) for name, report in reports.items()])
    _add_shared(page, reports, sources)
    for name, report in reports.items():
        page.add_heading(name)
        for note in sources[name].notes:
            page.add_text(note)
        _add_dropped(page, report, sources[name])
        _add_shapes(page, report)
        rules.show(page, report.facts)
        _add_duplicates(page, report, sources[name])
        large = _has_regions(report, sources[name])
        drawn = " Regions are drawn in green, ignored ones in grey." if large else ""
        page.add_text(f"Samples that would be used, taken at even steps through the set.{drawn}")
        page.add_pictures(_kept_pictures(report, sources[name], _LARGE_PICTURES if large else _PICTURES), large)
    page.write(path)


def _summary(name: str, report: CheckReport) -> list[object]:
    return [name, len(report), len(report.keep), report.lost, report.lost_share, len(report.duplicates)]


def _add_shared(page: Page, reports: Mapping[str, CheckReport], sources: Mapping[str, Source]) -> None:
    """Show the images that two sets share, each pair of sets once."""
    for other, one in combinations(reports, 2):
        pairs = reports[one].across(reports[other])
        if len(pairs):
            caption = f"{len(pairs):,} images of {one} are also in {other}: what is learned there is not tested here."
            rows = _pair_rows(pairs, sources[one], sources[other])
            page.add_table([f"in {one}", "label", f"in {other}", "label"], rows, caption)
        alike = reports[one].alike(reports[other])
        if len(alike):
            caption = (
                f"{len(alike):,} images of {one} look like images of {other}: the same picture saved again perhaps."
            )
            rows = _pair_rows(alike, sources[one], sources[other])
            page.add_table([f"in {one}", "label", f"in {other}", "label"], rows, caption)
            page.add_pictures(_pair_pictures(alike, sources[one], sources[other]))


def _pair_pictures(pairs: NDArray[np.int64], one: Source, other: Source) -> Iterator[Picture]:
    """Yield the pictures of some pairs, beside one another."""
    for left, right in pairs[:_PAIRS].tolist():
        for source, index in ((one, left), (other, right)):
            yield from _picture(source, index, f"{_label(source, index)}\n{source.key(index)}", "wrong")


def _add_dropped(page: Page, report: CheckReport, source: Source) -> None:
    if not report.lost:
        page.add_text("Every sample would be used.")
        return
    page.add_table(["reason", "left out"], report.counts.items())
    for reason, found in report.dropped.items():
        shown = [[entry.key, entry.label, entry.detail] for entry in found[:_EXAMPLES]]
        page.add_table(["key", "label", "what is wrong"], shown, f"{reason}: the first {len(shown)}")
    page.add_pictures(_dropped_pictures(report, source))


def _add_shapes(page: Page, report: CheckReport) -> None:
    ratios = report.aspect_ratio_histogram()
    page.add_bars(list(ratios), list(ratios.values()), caption="aspect ratio, width / height")


def _add_duplicates(page: Page, report: CheckReport, source: Source) -> None:
    pairs = report.duplicates
    if len(pairs):
        caption = f"{len(pairs):,} files repeat an earlier one byte for byte"
        page.add_table(["key", "label", "repeats", "label"], _pair_rows(pairs, source, source), caption)


def _pair_rows(pairs: NDArray[np.int64], one: Source, other: Source) -> list[list[object]]:
    return [
        [one.key(left), _label(one, left), other.key(right), _label(other, right)]
        for left, right in pairs[:_EXAMPLES].tolist()
    ]


def _label(source: Source, index: int) -> str:
    try:
        target = source.target(index)
    except DataError as error:
        return str(error)
    if isinstance(target, Text):
        return target.value
    return ", ".join(target.names) if isinstance(target, Labels) else f"{len(target.points)} regions"


def _dropped_pictures(report: CheckReport, source: Source) -> Iterator[Picture]:
    each = -(-_PICTURES // len(report.dropped))
    for reason, found in report.dropped.items():
        for entry in found[:each] if reason != "missing" else ():
            yield from _picture(source, entry.position, f"{entry.label}\n{reason}", "wrong")


def _kept_pictures(report: CheckReport, source: Source, count: int) -> Iterator[Picture]:
    steps = np.linspace(0, max(len(report.keep) - 1, 0), min(count, len(report.keep))).astype(np.int64)
    for index in report.keep[steps].tolist():
        yield from _picture(source, index, _label(source, index), "ok")


def _picture(source: Source, index: int, caption: str, verdict: Literal["ok", "wrong"]) -> Sequence[Picture]:
    """Return the picture of a sample, or nothing where its file has gone since the check."""
    if source.outside(index):  # the page travels, and a label file may name any picture of this machine
        return [Picture("outside the folder of the set: not shown", caption, verdict)]
    try:
        data = source.image(index)
    except DataError:
        return []
    try:
        image = decode(data, 3)
    except ImageError as error:
        return [Picture(str(error), caption, verdict)]
    with suppress(DataError):
        _outline(image, source.target(index))
    return [Picture(image, caption, verdict)]


def _outline(image: NDArray[np.uint8], target: Target) -> None:
    """Draw the regions of a picture into it, if that is what its target is."""
    if isinstance(target, Polygons):
        for ignored, colour in ((False, _FOUND), (True, _IGNORED)):
            some = [points for points, skip in zip(target.points, target.ignore, strict=True) if skip == ignored]
            draw_regions(image, some, colour)


def _has_regions(report: CheckReport, source: Source) -> bool:
    with suppress(DataError):
        return len(report) > 0 and isinstance(source.target(0), Polygons)
    return False
