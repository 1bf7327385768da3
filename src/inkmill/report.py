"""One HTML file that shows results: tables, histograms and pictures, readable anywhere and without a network.

The file holds everything it shows (pictures are data URIs) and a policy that forbids the browser to load anything
else. Labels and file names come from untrusted files, so every string is escaped, and pictures are encoded here from
pixels: no byte of an image file gets into the page.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.files import write_text_atomic

MAX_SIDE = 400
"""Longest side of an embedded picture in pixels; larger ones are shrunk."""
LARGE_SIDE = 1000
"""The same of pictures that are looked at for what is where in them."""

Colour = tuple[int, int, int]
"""Red, green and blue, 0..255."""

_WIDEST_BAR = 48
_PERCENT = re.compile(r"-?[\d,.]+%")
_UNPRINTABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#6a737d;--line:#d8dee4;--bar:#3b7dd8;
--ok:#1a7f37;--wrong:#cf222e}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--soft:#8d96a0;--line:#30363d;--bar:#4c8ff0;
--ok:#3fb950;--wrong:#f85149}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p,figcaption small,caption{color:var(--soft)}
table{border-collapse:collapse;display:block;overflow-x:auto;margin:1rem 0}caption{text-align:left}
th,td{padding:.25rem .9rem .25rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td,figcaption{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto}svg rect{fill:var(--bar)}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.8rem}
figure{margin:0;padding:.5rem;border:1px solid var(--line);border-top:3px solid var(--line);border-radius:4px}
figure.ok{border-top-color:var(--ok)}figure.wrong{border-top-color:var(--wrong)}
figure img{max-width:100%;min-height:2.5rem;max-height:12rem;object-fit:contain;background:#fff}
.large{grid-template-columns:repeat(auto-fill,minmax(30rem,1fr))}.large figure img{max-height:none}
figcaption{font:13px/1.4 ui-monospace,monospace}
figure.chart{max-width:48rem;margin:1rem 0;padding:0;border:0}
figure.chart figcaption{font:inherit;color:var(--soft)}
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title><style>{style}</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""


@dataclass(frozen=True)
class Picture:
    """One picture of a contact sheet.

    Attributes:
        image: uint8 (H, W), (H, W, 1) gray or (H, W, 3) RGB; or the reason why there is none, in words.
        caption: text below it; line ends are kept.
        verdict: "ok" and "wrong" draw a green and a red edge.
    """

    image: NDArray[np.uint8] | str
    caption: str
    verdict: Literal["", "ok", "wrong"] = ""


class Page:
    """Collects the parts of a page, top to bottom, and writes it.

    Args:
        title: heading and window title.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def add_heading(self, text: str) -> None:
        """Start a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def add_text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def add_table(self, header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> None:
        """Add a table; numbers and percentages are set to the right, floats with four digits, None as a dash."""
        body = [list(row) for row in rows]
        numeric = [_is_numeric([row[column] for row in body]) for column in range(len(header))]
        lines = [_row("th", header, numeric)]
        lines += [_row("td", map(_cell, row), numeric) for row in body]
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        self._parts.append(f"<table>{title}{''.join(lines)}</table>")

    def add_bars(self, labels: Sequence[str], counts: Sequence[float], caption: str = "") -> None:
        """Add a bar chart: one bar a label; pointing at a bar shows its label and count."""
        self.add_chart(_bars(labels, counts), caption)

    def add_chart(self, svg: str, caption: str = "") -> None:
        """Add a drawing; whatever text is in it must have gone through `escape`."""
        self._parts.append(f'<figure class="chart">{svg}<figcaption>{escape(caption)}</figcaption></figure>')

    def add_pictures(self, pictures: Iterable[Picture], large: bool = False) -> None:
        """Add a contact sheet. Pictures are drawn from the iterable one at a time, so that one is in memory.

        Args:
            pictures: what is shown.
            large: two side by side, for what is drawn into them.
        """
        figures = "".join(_figure(picture, LARGE_SIDE if large else MAX_SIDE) for picture in pictures)
        self._parts.append(f'<div class="pictures{" large" if large else ""}">{figures}</div>')

    def write(self, path: str | Path) -> None:
        """Write the page as one file.

        Raises:
            OutputError: the place cannot be written.
        """
        page = _PAGE.format(title=escape(self.title), style=_STYLE, body="\n".join(self._parts))
        write_text_atomic(path, page)


def escape(text: object) -> str:
    """Return text for HTML: markup escaped, unprintable characters and lone surrogates spelled out."""
    return html.escape(_UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], str(text)))


def _is_numeric(values: Sequence[object]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float | np.number) or (isinstance(value, str) and _PERCENT.fullmatch(value))
        for value in known
    )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float | np.floating) else str(value)


def _row(tag: str, cells: Iterable[str], numeric: Sequence[bool]) -> str:
    inner = (
        f"<{tag}{' class=n' if right else ''}>{escape(cell)}</{tag}>"
        for cell, right in zip(cells, numeric, strict=True)
    )
    return f"<tr>{''.join(inner)}</tr>"


def _bars(labels: Sequence[str], counts: Sequence[float], width: int = 720, height: int = 140) -> str:
    step = width / max(len(labels), 1)
    wide = min(max(step - 1, 0.5), _WIDEST_BAR)
    highest = max([*counts, 1e-12])
    every = -(-len(labels) // 16)  # more than some 16 labels would run into one another
    parts = []
    for position, (label, count) in enumerate(zip(labels, counts, strict=True)):
        middle, tall = (position + 0.5) * step, count / highest * height
        parts.append(
            f'<rect x="{middle - wide / 2:.1f}" y="{18 + height - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
            f"<title>{escape(label)}: {_cell(count)}</title></rect>"
        )
        if position % every == 0:
            parts.append(f'<text x="{middle:.1f}" y="{height + 32}" text-anchor="middle">{escape(label)}</text>')
    top = f'<text x="0" y="11">{_cell(max(counts, default=0))}</text>'
    return f'<svg viewBox="-12 0 {width + 24} {height + 38}" role="img">{top}{"".join(parts)}</svg>'


def draw_regions(image: NDArray[np.uint8], regions: Iterable[NDArray[np.floating[Any]]], colour: Colour) -> None:
    """Draw the outlines of regions, (N, 2) each, into an RGB picture, about as thick as a 300th of its longer side."""
    thick = max(1, max(image.shape[:2]) // 300)
    whole = [np.round(points).astype(np.int32)[:, None] for points in regions]
    cv2.polylines(image, whole, True, colour, thick, cv2.LINE_AA)


def _figure(picture: Picture, side: int) -> str:
    if isinstance(picture.image, str):
        shown = f"<small>{escape(picture.image)}</small>"
    else:
        shown = f'<img alt="" src="{_data_uri(picture.image, side)}">'
    return f'<figure class="{picture.verdict}">{shown}<figcaption>{escape(picture.caption)}</figcaption></figure>'


def _data_uri(image: NDArray[np.uint8], side: int) -> str:
    gray = image.ndim == 2 or image.shape[2] == 1
    pixels: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR if gray else cv2.COLOR_RGB2BGR)
    shrink = side / max(pixels.shape[:2])
    if shrink < 1:
        # Not fx=, fy=: a very long image would round to no rows at all.
        size = [max(1, round(length * shrink)) for length in pixels.shape[1::-1]]
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    encoded: NDArray[Any] = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])[1]
    return "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode("ascii")
