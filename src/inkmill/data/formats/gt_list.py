"""TAO's `gt_list.txt`: `name label`, a space in NVIDIA's documentation and a TAB in its converter.

The first run of blanks splits, so a label may hold spaces (which TAO itself cannot read) and a name may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from inkmill.data.formats.base import Entry, LabelFormat, register, unwritable
from inkmill.data.formats.lines import read_lines
from inkmill.data.types import Target, Text

_BLANKS = re.compile(r"[ \t]+")


@register
class GtList(LabelFormat):
    """One image a line: its name, spaces or TABs, its label. Blanks around the label are not part of it."""

    name = "gt_list"
    title = "NVIDIA TAO: name, space or TAB, label"
    example = "a.png New York"
    specificity = 10
    file_name = "gt_list.txt"

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        # Half of the lines will do: labels may be empty, and then a line holds a name alone.
        split = sum(1 for line in head if _BLANKS.search(line.strip(" \t")))
        return "lines hold a name, blanks and a label" if split and 2 * split >= len(head) else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; a line with a name alone has an empty label."""
        for number, line in read_lines(path):
            name, *label = _BLANKS.split(line.strip(" \t"), maxsplit=1)
            yield Entry(name, Text(label[0] if label else ""), number)

    def line(self, image: str, text: str) -> str:
        """See `LabelFormat.line`; writes a TAB, which TAO's converter insists on."""
        return f"{image}\t{text}"

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`."""
        if isinstance(target, Text) and target.value != target.value.strip(" \t"):
            return "the label begins or ends with a blank"
        return unwritable(image, " ") or super().refuses(image, target)
