"""docTR's `labels.json`: one object, image name to text.

It is read pair by pair, which gives every entry its line and finds a name that comes twice; `json.load` would silently
keep the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from inkmill.data.formats.base import Entry, LabelFormat, register
from inkmill.data.formats.lines import read_text, write_lines
from inkmill.data.types import Target, Text
from inkmill.errors import DataError, LabelFileError

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@register
class DocTr(LabelFormat):
    """A JSON object of image names and texts."""

    name = "doctr"
    title = "docTR labels.json: {name: text}"
    example = '{"a.png": "New York"}'
    specificity = 80
    file_name = "labels.json"

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`."""
        return "it begins with { as a JSON object does" if head and head[0].lstrip().startswith("{") else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; the file is held in memory while it is read."""
        seen: set[str] = set()
        for name, value, line in _pairs(read_text(path), path):
            if not isinstance(value, str):
                what = "text regions (detection)" if isinstance(value, dict) else type(value).__name__
                raise LabelFileError(f"expected a text for {name!r} and found {what}", path, line)
            if name in seen or not name:
                raise LabelFileError(f"the name {name!r} comes twice" if name else "an image name is empty", path, line)
            seen.add(name)
            yield Entry(name, Text(value), line)

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; one pair a line, in one JSON object. A name that comes twice is refused."""
        write_lines(path, _json_lines(self.checked(entries)))

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`; JSON can escape everything but half a surrogate pair."""
        if isinstance(target, Text) and not any("\ud800" <= char <= "\udfff" for char in image + target.value):
            return None if image else "the image name is empty"
        return super().refuses(image, target)


def _json_lines(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield "{"
    held = ""  # one pair behind: the last one has no comma
    seen = set[str]()
    for image, text in pairs:
        if image in seen:
            raise DataError(f"the image name {image!r} comes twice, which a JSON object cannot hold")
        seen.add(image)
        if held:
            yield f"{held},"
        held = f"  {json.dumps(image, ensure_ascii=False)}: {json.dumps(text, ensure_ascii=False)}"
    if held:
        yield held
    yield "}"


def _pairs(text: str, path: Path) -> Iterator[tuple[str, Any, int]]:
    """Yield (key, value, line) of the one object in `text`."""
    at = _skip(text, 0)
    line = 1
    counted = 0  # where counting line ends has stopped: the text is counted once, not once a pair
    try:
        _expect(text, at, "{")
        at = _skip(text, at + 1)
        first = True
        # The object by hand, its keys and values by the json module, which keeps strictness and speed.
        while text[at : at + 1] != "}":
            if not first:
                _expect(text, at, ",")
                at = _skip(text, at + 1)
            _expect(text, at, '"')
            line, counted = line + text.count("\n", counted, at), at
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, at)
            _expect(text, at, ":")
            value, at = _DECODER.raw_decode(text, _skip(text, at + 1))
            at, first = _skip(text, at), False
            yield key, value, line
        if _skip(text, at + 1) != len(text):
            raise json.JSONDecodeError("expected nothing after the closing }", text, at + 1)
    except json.JSONDecodeError as error:
        raise LabelFileError(f"not valid JSON: {error.msg} (column {error.colno})", path, error.lineno) from None
    except ValueError as error:  # a number of thousands of digits
        raise LabelFileError(f"not a file of texts: {error}", path, line) from None
    except RecursionError:
        raise LabelFileError("not a file of texts: nested too deeply", path, line) from None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, char: str) -> None:
    if text[at : at + 1] != char:
        raise json.JSONDecodeError(f"expected {char}", text, at)
