"""Label files as numbered lines: the only file that knows about encodings, byte-order marks and line ends.

Lines end at LF alone: U+0085, U+2028 and the like are characters of a label here, as in every tool whose files these
are. A file is streamed, so a million labels cost no memory, and a line has a length limit, so neither does a file that
was never a label file.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from inkmill.errors import LabelFileError
from inkmill.files import UNPACK, atomic_path, compression_of, explain, open_data, read_data

MAX_LINE_BYTES = 1 << 20
"""Longest line of a label file: a megabyte holds any label, and keeps a binary file from filling the memory."""

MAX_FILE_BYTES = 1 << 30
"""Largest label file that is held in memory whole, as JSON is; COCO's own are half of it."""

# UTF-16 and UTF-32 share their first bytes, so the longer mark comes first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of every line that is not blank.

    UTF-8 and UTF-16, each with or without a byte-order mark; LF or CRLF.

    Raises:
        LabelFileError: no such file, not text in one of these encodings, or a line over MAX_LINE_BYTES.
    """
    for number, line in raw_lines(path):
        if number == 1:
            _refuse_old_mac(line, path)
        text = line.removesuffix("\n").removesuffix("\r")
        if text.strip():
            yield number, text


def raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text with its line end) of every line, blank ones too; raises as `read_lines`."""
    try:
        with open_data(path) as stream:
            head = stream.read(4096)
            if packed := compression_of(head):
                raise LabelFileError(f"it is compressed with {packed}: {UNPACK[packed]}", path)
            encoding, skip = _encoding(head)
            stream.seek(skip)
            for number, raw in enumerate(_split(stream, encoding, path), 1):
                yield number, _decode(raw, encoding, path, number)
    except OSError as error:
        raise LabelFileError(f"cannot be read ({explain(error)})", path) from error


def read_text(path: Path) -> str:
    """Return a whole text file, for formats that are not made of lines; raises as `read_lines`."""
    try:
        data = read_data(path, MAX_FILE_BYTES)
    except OSError as error:
        raise LabelFileError(f"cannot be read ({explain(error)})", path) from error
    encoding, skip = _encoding(data[:4096])
    return _decode(data[skip:], encoding, path, 1)


def head_lines(path: Path, count: int = 64) -> list[str]:
    """Return the first lines that are not blank, out of the first 64 KiB, for detecting its format.

    Undecodable bytes become U+FFFD here; reading the whole file reports them.

    Raises:
        LabelFileError: no such file.
    """
    try:
        with open_data(path) as stream:
            head = stream.read(1 << 16)
    except OSError as error:
        raise LabelFileError(f"cannot be read ({explain(error)})", path) from error
    if packed := compression_of(head):
        raise LabelFileError(f"it is compressed with {packed}: {UNPACK[packed]}", path)
    encoding, skip = _encoding(head[:4096])
    text = head[skip:].decode(encoding, errors="replace")
    _refuse_old_mac(text, path)
    lines = text.split("\n")
    if len(head) == 1 << 16 and len(lines) > 1:
        lines.pop()  # the last line is cut in the middle
    return [line.removesuffix("\r") for line in lines if line.strip()][:count]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8 with LF ends, the whole file or nothing; raises OutputError."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _refuse_old_mac(first: str, path: Path) -> None:
    """Refuse a text of one line with CRs within: all its lines would be one. JSON needs no lines."""
    if "\n" not in first and "\r" in first.rstrip("\r") and not first.lstrip().startswith("{"):
        raise LabelFileError("its lines end with CR alone, as on old Macs: save it with LF line ends", path, 1)


def _encoding(head: bytes) -> tuple[str, int]:
    """Return the encoding and the length of the byte-order mark."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    # UTF-16 without a mark: Latin letters, commas and line ends have a zero byte, all on the same side, and names of
    # files consist of them. A few zeros, or on both sides, are a damaged file.
    if b"\x00" in head:
        low, high = head[0::2].count(0), head[1::2].count(0)
        if max(low, high) > max(1, len(head) // 20) and min(low, high) * 20 <= max(low, high):
            return ("utf-16-le" if high >= low else "utf-16-be"), 0
    return "utf-8", 0


def _split(stream: BinaryIO, encoding: str, path: Path) -> Iterator[bytes]:
    if encoding != "utf-8":
        yield from _split_wide(stream, encoding, path)
        return
    # At most one byte more than allowed is read, so a file without line ends does not fill the memory.
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        _check_length(line, path, number)
        yield line


def _split_wide(stream: BinaryIO, encoding: str, path: Path) -> Iterator[bytes]:
    """Split at the encoded line end, and only where a code unit begins: 0x0A is half of many characters."""
    newline = "\n".encode(encoding)
    width = len(newline)
    rest = b""  # the beginning of a line whose end is not read yet
    number = 0
    while block := stream.read(1 << 16):
        rest += block
        start = at = 0
        while (at := rest.find(newline, at)) >= 0:
            if at % width:  # two halves of neighbouring characters
                at += 1
                continue
            number += 1
            at += width
            yield rest[start:at]
            start = at
        rest = rest[start:]
        _check_length(rest, path, number + 1)
    if rest:
        yield rest


def _check_length(line: bytes, path: Path, number: int) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise LabelFileError(
            f"the line is over {MAX_LINE_BYTES >> 20} MiB long, so this is no label file", path, number
        )


def _decode(raw: bytes, encoding: str, path: Path, number: int) -> str:
    if encoding == "utf-8" and b"\0" in raw:
        number += raw.count(b"\n", 0, raw.index(0))
        raise LabelFileError("it holds a NUL (a byte 0), as damaged and binary files do: write it anew", path, number)
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        byte, number = raw[error.start], number + raw.count(b"\n", 0, error.start)
        raise LabelFileError(
            f"byte 0x{byte:02x} is not {encoding.upper()}: save the file as UTF-8", path, number
        ) from None
