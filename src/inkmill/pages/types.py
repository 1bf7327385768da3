"""What a page is before it is read (`PageImage`) and after (`Page`, `Line`, `Word`).

Every coordinate is in pixels of the page as a viewer displays it: turned by EXIF or by the PDF's /Rotate, x to the
right, y down, whole numbers at the corners of pixels. A polygon begins at the top left *of the text* and goes
clockwise, so its first edge is the direction of reading: a word that stands upside down begins at its bottom right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float32]
Rotation = Literal[0, 90, 180, 270]


@dataclass(frozen=True, slots=True, eq=False)
class PageImage:
    """One page to read.

    Attributes:
        source: the file it came from, or a name that the caller chose.
        number: its place in the file, from 1.
        pixels: uint8 (height, width, 3) RGB, upright as a viewer shows it.
        dpi: pixels an inch where the file says so or the page was rendered at it; None: unknown.
        notes: what was cut or guessed on the way here.
    """

    source: str
    number: int
    pixels: NDArray[np.uint8]
    dpi: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """What stands between two spaces.

    Attributes:
        text: at least one character, no space.
        confidence: mean probability of its characters, 0..1.
        polygon: float32 (4, 2).
        characters: float32 (len(text), 4, 2), a polygon for each character.
    """

    text: str
    confidence: float
    polygon: Points
    characters: Points


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Words that stand side by side without a wide gap.

    Attributes:
        text: the words with one space between them.
        confidence: mean probability of its characters, 0..1.
        polygon: float32 (N, 2), N at least 4.
        words: at least one, in reading order.
        block: the column or paragraph that it belongs to, from 0 in reading order.
        row: its row in the block, from 0; lines of one row stand beside each other (a table, a receipt's price).
    """

    text: str
    confidence: float
    polygon: Points
    words: tuple[Word, ...]
    block: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """A page that was read.

    Attributes:
        source: the file.
        number: its place in the file, from 1.
        width: pixels.
        height: pixels.
        dpi: pixels an inch; None: unknown.
        rotation: by how many degrees the text is turned clockwise from upright: 90 where it runs from top to bottom.
        lines: in reading order.
        notes: what was left out and why, a sentence each; empty where nothing was.
        skew: by how many degrees the lines are turned clockwise beyond `rotation`, -45..45.
        seconds: how long each stage took, for people.
    """

    source: str
    number: int
    width: int
    height: int
    dpi: float | None
    rotation: Rotation
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    skew: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text: a line for each row, an empty line between blocks."""
        parts: list[str] = []
        before: tuple[int, int] | None = None
        for line in self.lines:
            here = (line.block, line.row)
            if before is not None:
                parts.append(" " if here == before else "\n" if here[0] == before[0] else "\n\n")
            parts.append(line.text)
            before = here
        return "".join(parts)
