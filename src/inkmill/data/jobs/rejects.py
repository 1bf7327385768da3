"""Samples set aside: a copy of each in a folder, and rejects.tsv beside them that says which and why.

`convert` fills such a folder with what it leaves out, and a loader with `on_bad_sample="quarantine"` with what turns
out bad while training. Lines of rejects.tsv: key, reason, name of the copy (empty where there is none).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from inkmill.data.pipeline.image_header import read_header
from inkmill.data.sources.base import Source
from inkmill.errors import DataError, ImageError
from inkmill.files import write_bytes_atomic, writing

REJECTS = "rejects.tsv"

_SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "GIF": ".gif", "BMP": ".bmp", "WebP": ".webp", "TIFF": ".tif"}


def suffix_of(image: bytes) -> str:
    """Return the file suffix of an encoded image by its contents, or an empty string when it is none."""
    try:
        return _SUFFIXES[read_header(image).format]
    except ImageError:
        return ""


def copy_suffix(key: str, image: bytes) -> str:
    """Return the suffix of a bad sample's copy: its contents', else its name's where that is harmless, else .bin."""
    suffix = suffix_of(image) or PurePosixPath(key).suffix[:8]
    return suffix if suffix[1:].isalnum() else ".bin"


def append_rejects(folder: Path, rows: Iterable[tuple[str, str, str]]) -> None:
    """Append (key, reason, copy) to rejects.tsv, making the folder where it is missing; raises OutputError."""
    lines = "".join("\t".join(map(_one_line, row)) + "\n" for row in rows)
    with writing(folder / REJECTS):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / REJECTS).open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(lines)  # in one write: the ranks of a run share the file


def quarantine(folder: Path, source: Source, index: int, reason: str) -> None:
    """Copy a bad sample into a folder, under the hash of its key, and note it in rejects.tsv; once a sample.

    Raises:
        OutputError: the folder cannot be written.
    """
    key = source.key(index)
    try:
        image = source.image(index)
    except (DataError, OSError):
        if not _noted(folder, key):
            append_rejects(folder, [(key, reason, "")])
        return
    # A hash, for keys may hold anything, and the same sample has to get the same name in every epoch and rank.
    name = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    copy = f"{name}{copy_suffix(key, image)}"
    if not (folder / copy).exists():  # else an earlier run has copied it
        write_bytes_atomic(folder / copy, image)
        append_rejects(folder, [(key, reason, copy)])


def _noted(folder: Path, key: str) -> bool:
    try:
        with (folder / REJECTS).open(encoding="utf-8", errors="replace") as file:
            return any(line.partition("\t")[0] == _one_line(key) for line in file)
    except OSError:
        return False


def _one_line(part: str) -> str:
    return " ".join(part.split())
